//! Integration tests, one file per stage.

mod admin;
mod admin_find;
mod admin_letters;
mod admin_order;
mod admin_rebase;
mod admin_replay;
mod admin_subscription;
mod database;
mod emit_cancel;
mod emit_connections;
mod emit_dedup;
mod emit_order;
mod emit_payload;
mod emit_statements;
mod emit_transaction;
mod migrate;
mod relay;
mod testing;
