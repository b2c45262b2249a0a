//! `cargo xtask docs` with and without mdBook. A script stands in for it.

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};
use std::{env, fs};

/// Runs it with this program in the place of mdBook.
fn docs(mdbook: &str) -> (Output, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    let output = command.arg("docs").env("MDBOOK", mdbook).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, told)
}

/// Runs it with a script in the place of mdBook.
fn docs_by(name: &str, script: &str) -> (Output, String) {
    let file = env::temp_dir().join(format!("xtask-docs-{}-{name}", std::process::id()));
    fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    let outcome = docs(file.to_str().unwrap());
    fs::remove_file(file).unwrap();
    outcome
}

#[test]
fn without_mdbook_it_tells_the_command_that_installs_it() {
    let (output, told) = docs("/nowhere/mdbook");
    assert!(!output.status.success());
    assert!(told.contains("cargo install --locked mdbook"), "{told}");
}

#[test]
fn mdbook_builds_the_directory_of_the_guide() {
    let (output, told) = docs_by("good", r#"test "$1" = build && test -f "$2/book.toml""#);
    assert!(output.status.success(), "{told}");
    assert!(told.contains("target/guide/index.html"), "{told}");
}

#[test]
fn a_failure_of_mdbook_is_told() {
    let (output, told) = docs_by("bad", "exit 3");
    assert!(!output.status.success());
    assert!(told.contains("ended with exit status: 3"), "{told}");
}
