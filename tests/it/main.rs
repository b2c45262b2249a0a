//! Integration tests, one file per stage.

mod database;
mod emit_cancel;
mod emit_connections;
mod emit_dedup;
mod emit_order;
mod emit_payload;
mod emit_statements;
mod emit_transaction;
mod lease;
mod migrate;
mod outage;
mod park;
mod partition;
mod read;
mod relay;
mod retry;
mod settle;
mod startup;
mod subscription;
mod testing;
mod tick;
