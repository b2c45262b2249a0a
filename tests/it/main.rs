//! Integration tests, one file per stage.

mod consumer;
mod consumer_exclusive;
mod consumer_failures;
mod consumer_takeover;
mod database;
mod emit_cancel;
mod emit_connections;
mod emit_dedup;
mod emit_order;
mod emit_payload;
mod emit_statements;
mod emit_transaction;
mod inbox;
mod inbox_retention;
mod migrate;
mod relay;
mod testing;
