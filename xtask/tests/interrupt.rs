//! A signal to `cargo xtask` ends the command it runs, then the servers, then itself.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use xtask::programs;

/// `cargo xtask test` with a `cargo` that only sleeps, so that it stays where the servers run;
/// and the ports of its servers.
fn start_task() -> Option<(Child, Vec<u16>)> {
    if programs::find_postgres().is_none() || programs::find_redis().is_none() {
        eprintln!("SKIPPED: PostgreSQL or Redis is not installed");
        return None;
    }
    let fake = env::temp_dir().join(format!("xtask-fake-cargo-{}", std::process::id()));
    fs::create_dir_all(&fake).unwrap();
    let script = fake.join("cargo");
    fs::write(&script, "#!/bin/sh\nexec sleep 60\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let mut path = fake.into_os_string();
    path.push(":");
    path.push(env::var_os("PATH").unwrap());

    let mut task = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(["test", "--no-install"])
        .env("PATH", path)
        .env_remove("DATABASE_URL")
        .env_remove("REDIS_URL")
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
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
    Some((task, ports))
}

fn accepts(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok()
}

#[test]
fn a_signal_ends_the_servers_and_the_exit_code_is_130() {
    let Some((mut task, ports)) = start_task() else { return };
    assert!(ports.iter().all(|port| accepts(*port)));
    assert!(!ports.iter().any(|port| [5432, 6379].contains(port)));

    let before = Instant::now();
    kill(Pid::from_raw(task.id().try_into().unwrap()), Signal::SIGINT).unwrap();
    assert_eq!(task.wait().unwrap().code(), Some(130));
    assert!(before.elapsed() < Duration::from_secs(15));
    assert!(!ports.iter().any(|port| accepts(*port)));
}
