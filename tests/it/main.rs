//! Integration tests, one file per stage.

mod database;
mod emit_dedup;
mod emit_order;
mod emit_transaction;
