//! `cargo xtask`: demo, test, check.

fn main() {}
