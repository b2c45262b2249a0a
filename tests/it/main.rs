//! Integration tests, one file per stage.

mod database;
