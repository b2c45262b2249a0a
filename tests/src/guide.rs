//! The guide: its examples are compiled as this crate's.

macro_rules! pages {
    ($($page:ident: $file:literal),* $(,)?) => {
        $(#[doc = include_str!(concat!("../../docs/src/", $file))]
        struct $page;)*
    };
}

pages! {
    QuickStart: "quick-start.md",
    Concepts: "concepts.md",
    Events: "events.md",
    Ordering: "ordering.md",
    Failures: "failures.md",
    Consuming: "consuming.md",
    Testing: "testing.md",
    Operating: "operating.md",
    Upgrading: "upgrading.md",
    Migrating: "migrating.md",
    Comparison: "comparison.md",
    Questions: "faq.md",
}
