//! A process that is killed leaves no server behind, and its data only until the next start.
//!
//! The victim is this very test binary, run again with a variable that tells it to start servers
//! and wait for its end.
#![cfg(target_os = "linux")]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use xtask::postgres::{self, Durability, Postgres};
use xtask::programs;
use xtask::redis::{self, Redis};

const VICTIM: &str = "XTASK_TEST_VICTIM";

/// A process with servers, and what is known of them.
struct Victim {
    process: Child,
    servers: Vec<u32>,
    directories: Vec<PathBuf>,
}

/// Runs only inside the victim: starts servers, tells their pids and waits to be killed.
#[test]
fn victim() {
    if std::env::var_os(VICTIM).is_none() {
        return;
    }
    let options = postgres::Options::default().durability(Durability::None);
    let postgres = Postgres::start(options).unwrap();
    let redis = Redis::start(redis::Options::default()).unwrap();
    for pid in [postgres.pid(), redis.pid()] {
        let pid = pid.unwrap();
        println!(
            "SERVER {pid} {}",
            std::fs::read_link(format!("/proc/{pid}/cwd")).unwrap().display()
        );
    }
    println!("READY");
    std::thread::sleep(Duration::from_secs(60));
}

fn start_victim() -> Option<Victim> {
    if programs::find_postgres().is_none() || programs::find_redis().is_none() {
        eprintln!("SKIPPED: PostgreSQL or Redis is not installed");
        return None;
    }
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["victim", "--exact", "--nocapture"])
        .env(VICTIM, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut servers, mut directories) = (Vec::new(), Vec::new());
    for line in BufReader::new(process.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        if let Some((pid, directory)) =
            line.strip_prefix("SERVER ").and_then(|rest| rest.split_once(' '))
        {
            servers.push(pid.parse().unwrap());
            // The postmaster works in its data directory, which lies in the server's.
            let directory = Path::new(directory);
            let data = directory.ends_with("data");
            directories.push(if data { directory.parent().unwrap() } else { directory }.to_owned());
        }
        if line == "READY" {
            break;
        }
    }
    assert_eq!(servers.len(), 2, "the victim did not start its servers");
    Some(Victim { process, servers, directories })
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(15);
    while !holds() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn is_alive(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap().trim_start().starts_with('Z'))
}

/// The watchdogs of a process are its children that run a shell.
fn watchdogs(parent: u32) -> Vec<u32> {
    let children = format!("/proc/{parent}/task");
    std::fs::read_dir(children)
        .unwrap()
        .filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("children")).ok())
        .flat_map(|pids| {
            pids.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>()
        })
        .filter(|pid| {
            std::fs::read_to_string(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|command| command.contains("watchdog"))
        })
        .collect()
}

#[test]
fn servers_end_when_their_owner_is_killed_and_the_next_start_removes_their_data() {
    let Some(mut victim) = start_victim() else { return };
    assert!(victim.servers.iter().all(|pid| is_alive(*pid)));
    victim.process.kill().unwrap();
    victim.process.wait().unwrap();
    eventually("the servers end", || !victim.servers.iter().any(|pid| is_alive(*pid)));
    drop(Redis::start(redis::Options::default()).unwrap());
    assert!(!victim.directories.iter().any(|directory| directory.exists()));
}

#[test]
fn servers_that_outlive_owner_and_watchdog_are_ended_by_the_next_start() {
    let Some(mut victim) = start_victim() else { return };
    let watchdogs = watchdogs(victim.process.id());
    assert_eq!(watchdogs.len(), 2);
    for watchdog in watchdogs {
        kill(Pid::from_raw(watchdog.try_into().unwrap()), Signal::SIGKILL).unwrap();
    }
    victim.process.kill().unwrap();
    victim.process.wait().unwrap();

    xtask::clean_leftovers().unwrap();
    assert!(!victim.servers.iter().any(|pid| is_alive(*pid)));
    assert!(!victim.directories.iter().any(|directory| directory.exists()));
}
