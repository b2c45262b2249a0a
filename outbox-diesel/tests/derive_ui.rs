//! What the compiler says about each mistake; one file a mistake in `ui/`.

#[test]
fn every_mistake_is_reported_where_it_is_and_with_the_right_form() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
