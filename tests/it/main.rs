//! Integration tests, one file per stage.

mod database;
mod emit_transaction;
