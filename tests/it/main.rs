//! Integration tests, one file per stage.

mod database;
mod emit_cancel;
mod emit_connections;
mod emit_dedup;
mod emit_order;
mod emit_payload;
mod emit_statements;
mod emit_transaction;
mod leaves;
mod log;
mod migrate;
mod partition_ahead;
mod partition_check;
mod partition_locks;
mod relay;
mod retention;
mod retention_relay;
mod retention_rows;
mod roles;
mod testing;
