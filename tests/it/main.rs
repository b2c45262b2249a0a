//! Integration tests, one file per stage.
