//! What makes no sense is said in one line, with what to do, and without credentials.

use outbox_tests::TestDatabase;

use crate::program::{command, outbox, run};

#[test]
fn no_database_named_is_an_error_that_says_how_to_name_one() {
    let mut command = command("");
    command.arg("status");
    let said = run(command).failed(2);
    assert!(said.starts_with("error: no database is named\n  set DATABASE_URL="), "{said}");
}

#[test]
fn a_server_that_is_not_there_is_named_without_credentials() {
    for arguments in [
        &["status"][..],
        &["doctor"],
        &["migrate", "run"],
        &["relay", "--redis-url", "redis://127.0.0.1:1/"],
    ] {
        let mut command = command("postgres://me:s3cret@127.0.0.1:1/shop");
        command.args(arguments);
        let ran = run(command);
        assert!(!format!("{ran:?}").contains("s3cret"), "{ran:?}");
        let said = ran.failed(3);
        assert!(said.contains("PostgreSQL at 127.0.0.1:1, database \"shop\""), "{said}");
        assert!(said.contains("is the server running"), "{said}");
        assert_eq!(said.lines().count(), 2, "{said}");
    }
}

#[test]
fn a_database_that_is_not_there_is_named() {
    let database = TestDatabase::empty();
    let mut command = command(&database.url().replace(database.name(), "no_such_database"));
    command.arg("status");
    let said = run(command).failed(3);
    assert!(said.contains("no_such_database") && said.contains("create the database"), "{said}");
}

#[test]
fn the_help_prints_no_credentials() {
    for arguments in [&["--help"][..], &["relay", "--help"], &["doctor", "--help"]] {
        let mut command = command("postgres://me:s3cret@127.0.0.1:1/shop");
        command.args(arguments).env("REDIS_URL", "redis://me:s3cret@127.0.0.1:1/");
        let said = run(command).said();
        assert!(!said.contains("s3cret") && said.contains("DATABASE_URL"), "{said}");
    }
}

#[test]
fn exit_codes_are_documented() {
    let database = TestDatabase::empty();
    let said = outbox(&database, &["--help"]).said();
    for code in ["0 ", "1 ", "2 ", "3 ", "4 ", "10 ", "20 ", "130 "] {
        assert!(said.contains(&format!("\n  {code}")), "{code}: {said}");
    }
}

#[test]
fn a_redis_url_that_cannot_be_used_is_an_error_without_it() {
    let database = TestDatabase::new();
    let mut command = command(&database.url());
    command.arg("relay").env("REDIS_URL", "http://me:s3cret@127.0.0.1/");
    let ran = run(command);
    assert!(!format!("{ran:?}").contains("s3cret"), "{ran:?}");
    assert!(ran.failed(2).contains("redis URL"));
}

#[test]
fn options_that_cannot_work_together_are_refused() {
    let database = TestDatabase::new();
    let mut command = command(&database.url());
    command.args(["relay", "--lease", "4s"]).env("REDIS_URL", "redis://127.0.0.1:1/");
    let said = run(command).failed(2);
    assert!(said.contains("the lease of 4s must be longer"), "{said}");
}

#[test]
fn what_is_missing_newer_or_older_is_said_with_what_mends_it() {
    let database = TestDatabase::empty();
    let said = outbox(&database, &["status"]).failed(4);
    assert!(said.contains("no schema outbox") && said.contains("outbox migrate run"), "{said}");

    let database = TestDatabase::new();
    database
        .sql("INSERT INTO outbox.migrations (version, name) VALUES ('99991231235959', 'later')");
    let said = outbox(&database, &["dead", "list"]).failed(4);
    assert!(said.contains("newer") && said.contains("install a newer outbox-cli"), "{said}");

    database.sql("DELETE FROM outbox.migrations WHERE version >= (SELECT max(version) FROM outbox.migrations WHERE version < '9')");
    let said = outbox(&database, &["dead", "list"]).failed(4);
    assert!(said.contains("older") && said.contains("outbox migrate run"), "{said}");
}

#[test]
fn errors_are_json_where_json_is_asked_for() {
    let database = TestDatabase::empty();
    let said = outbox(&database, &["--json", "status"]).failed(4);
    let error: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(error["code"], 4);
    assert!(error["advice"].as_str().unwrap().contains("migrate run"));
}

#[test]
fn every_shell_gets_completions() {
    let database = TestDatabase::empty();
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let said = outbox(&database, &["completions", shell]).said();
        assert!(said.contains("subscriptions"), "{shell}");
    }
}

#[test]
fn a_role_without_rights_is_told_so() {
    let database = TestDatabase::new();
    let role = format!("{}_guest", database.name());
    database.sql(&format!("CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA outbox TO {role}; GRANT SELECT ON outbox.migrations TO {role}"));
    let mut command = command(&database.url_as(&role));
    command.args(["dead", "list"]);
    let said = run(command).failed(1);
    assert!(said.contains("permission denied") && said.contains("outbox_operator"), "{said}");
    database.sql(&format!("DROP OWNED BY {role}"));
}
