//! Integration tests, one file per stage.

mod crash_claim;
mod crash_connection;
mod crash_membership;
mod crash_postgres;
mod crash_redis;
mod crash_relay;
mod database;
mod emit_cancel;
mod emit_connections;
mod emit_dedup;
mod emit_order;
mod emit_payload;
mod emit_statements;
mod emit_transaction;
mod footprint;
mod guard;
mod migrate;
mod pgbouncer;
mod property;
mod read_heavy;
mod relay;
mod retry_passed;
mod testing;
mod tick_order;
