//! What the compiler says about an emit that nothing proves to be in a transaction, without the
//! feature `connection-emit`:
//! `cargo test -p outbox-diesel --no-default-features --features async --test transaction_ui`.
#![cfg(all(feature = "async", not(feature = "connection-emit")))]

#[test]
fn an_emit_outside_of_a_transaction_is_no_program() {
    trybuild::TestCases::new().compile_fail("tests/ui_transaction/*.rs");
}
