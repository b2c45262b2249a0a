//! What the compiler says where a contract cannot be made.
#![cfg(feature = "contract")]

#[test]
fn an_event_without_a_schema_is_named_with_what_to_add() {
    trybuild::TestCases::new().compile_fail("tests/ui_contract/*.rs");
}
