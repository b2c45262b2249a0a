//! What `cargo xtask` does around the cargo commands it runs. A script stands in for cargo.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use xtask::programs;

/// A directory with a program `cargo` that is this script; removed on drop.
struct FakeCargo(PathBuf);

impl FakeCargo {
    fn new(name: &str, script: &str) -> Self {
        let directory = env::temp_dir().join(format!("xtask-test-{}-{name}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let cargo = directory.join("cargo");
        fs::write(&cargo, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&cargo, fs::Permissions::from_mode(0o755)).unwrap();
        Self(directory)
    }

    /// `cargo xtask test --no-install` that runs this cargo and knows of no server.
    fn test(&self) -> Command {
        let path = env::var_os("PATH").unwrap();
        let path = env::join_paths([self.0.clone()].into_iter().chain(env::split_paths(&path)));
        let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
        command
            .args(["test", "--no-install"])
            .env("PATH", path.unwrap())
            .env_remove("DATABASE_URL")
            .env_remove("REDIS_URL");
        command
    }
}

impl Drop for FakeCargo {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn accepts(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok()
}

fn skips() -> bool {
    let missing = programs::find_postgres().is_none() || programs::find_redis().is_none();
    if missing {
        eprintln!("SKIPPED: PostgreSQL or Redis is not installed");
    }
    missing
}

#[test]
fn a_signal_ends_the_servers_and_the_exit_code_is_130() {
    if skips() {
        return;
    }
    let cargo = FakeCargo::new("sleeps", "exec sleep 60");
    let mut task = cargo.test().stderr(Stdio::piped()).spawn().unwrap();
    let mut ports = Vec::new();
    let mut lines = BufReader::new(task.stderr.take().unwrap()).lines().map(Result::unwrap);
    for line in lines.by_ref() {
        if line.contains("_URL=") {
            let port = line.rsplit(':').next().unwrap().split('/').next().unwrap();
            ports.push(port.parse().unwrap());
        }
        if line.ends_with("build") {
            break;
        }
    }
    // Keeps the pipe open: a task whose output nobody reads ends for that reason.
    std::thread::spawn(move || lines.for_each(drop));
    assert_eq!(ports.len(), 2, "the task did not start its servers");
    assert!(ports.iter().all(|port| accepts(*port)));
    assert!(!ports.iter().any(|port| [5432, 6379].contains(port)));

    let before = Instant::now();
    kill(Pid::from_raw(task.id().try_into().unwrap()), Signal::SIGINT).unwrap();
    assert_eq!(task.wait().unwrap().code(), Some(130));
    assert!(before.elapsed() < Duration::from_secs(15));
    assert!(!ports.iter().any(|port| accepts(*port)));
}

#[test]
fn named_servers_are_used_even_where_no_server_program_is() {
    let cargo = FakeCargo::new("tells", r#"echo "$DATABASE_URL $REDIS_URL $*""#);
    let output = cargo
        .test()
        .args(["--", "some_test", "--", "--nocapture"])
        .env("DATABASE_URL", "postgres://db.invalid/a")
        .env("REDIS_URL", "redis://redis.invalid/")
        .env(programs::POSTGRES_BIN, "/nowhere")
        .env(programs::REDIS_SERVER, "/nowhere/redis-server")
        .output()
        .unwrap();
    assert!(output.status.success());
    let said = String::from_utf8(output.stdout).unwrap();
    let expected = "postgres://db.invalid/a redis://redis.invalid/ \
                    test --all-features --workspace some_test -- --nocapture";
    assert_eq!(said.lines().last(), Some(expected));
    let warned = String::from_utf8(output.stderr).unwrap();
    assert!(warned.contains("WILL BE SKIPPED"), "{warned}");
}

#[test]
fn a_version_is_not_chosen_for_a_server_that_is_named() {
    let cargo = FakeCargo::new("chooses", "echo ran");
    for (arguments, named) in [(["--pg", "15"], "DATABASE_URL"), (["--redis", "8"], "REDIS_URL")] {
        let mut task = cargo.test();
        task.args(arguments).env(named, "elsewhere://server.invalid/");
        let output = task.output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(&format!("but {named} names another")), "{said}");
        assert!(output.stdout.is_empty(), "the tests ran against another server");
    }
}

#[test]
fn without_programs_and_without_leave_to_install_the_ways_out_are_told() {
    let cargo = FakeCargo::new("unused", "exit 0");
    let output = cargo.test().env(programs::POSTGRES_BIN, "/nowhere").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("PostgreSQL 14 or newer"), "{said}");
    assert!(said.contains("docker compose up --wait"), "{said}");
}

#[test]
fn the_exit_code_of_the_tests_is_passed_on() {
    let cargo = FakeCargo::new("fails", r#"case "$*" in *--no-run*) exit 0;; *) exit 42;; esac"#);
    let output = cargo
        .test()
        .env("DATABASE_URL", "postgres://db.invalid/a")
        .env("REDIS_URL", "redis://redis.invalid/")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(42));
}
