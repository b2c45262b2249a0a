//! Servers start, stop, crash and come back; nothing of them is left.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use nix::sys::signal::kill;
use nix::unistd::Pid;
use xtask::pgbouncer::{PgBouncer, PoolMode};
use xtask::postgres::{self, Durability, Postgres};
use xtask::programs;
use xtask::redis::{self, Persistence, Redis};

/// Whether a server program is here; says loudly what is skipped if not.
fn has<T>(program: Option<&T>, name: &str) -> bool {
    if program.is_none() {
        eprintln!("SKIPPED: {name} is not installed");
    }
    program.is_some()
}

fn postgres() -> Postgres {
    Postgres::start(postgres::Options::default().durability(Durability::None)).unwrap()
}

fn accepts(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok()
}

fn is_alive(pid: u32) -> bool {
    kill(Pid::from_raw(pid.try_into().unwrap()), None).is_ok()
}

/// Sends one inline command and reads one line.
fn redis_says(redis: &Redis, command: &str) -> std::io::Result<String> {
    let mut connection = TcpStream::connect(("127.0.0.1", redis.port()))?;
    connection.set_read_timeout(Some(Duration::from_millis(500)))?;
    connection.write_all(format!("{command}\r\nQUIT\r\n").as_bytes())?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer)?;
    Ok(answer.trim_end_matches("+OK\r\n").trim_end().to_owned())
}

#[test]
fn postgres_comes_back_on_its_port_after_a_stop_and_after_a_crash() {
    if !has(programs::find_postgres().as_ref(), "postgres") {
        return;
    }
    let mut server = postgres();
    let port = server.port();
    assert!(accepts(port));
    server.stop().unwrap();
    assert!(!accepts(port));
    server.restart().unwrap();
    assert!(accepts(port));
    server.kill().unwrap();
    assert!(!accepts(port));
    server.restart().unwrap();
    assert!(accepts(port));
    assert!(server.log().contains("automatic recovery"), "{}", server.log());
    assert_eq!(server.port(), port);
}

#[test]
fn two_postgres_start_at_once_and_nothing_is_left_of_them() {
    if !has(programs::find_postgres().as_ref(), "postgres") {
        return;
    }
    let threads = [(); 2].map(|()| std::thread::spawn(postgres));
    let [one, two] = threads.map(|thread| thread.join().unwrap());
    assert_ne!(one.port(), two.port());
    for server in [one, two] {
        let (port, pid) = (server.port(), server.pid().unwrap());
        assert!(![5432, 6379].contains(&port));
        assert!(accepts(port) && is_alive(pid));
        drop(server);
        assert!(!accepts(port) && !is_alive(pid));
    }
}

#[test]
fn a_panic_ends_the_server() {
    if !has(programs::find_redis().as_ref(), "redis-server") {
        return;
    }
    let (send, receive) = std::sync::mpsc::channel();
    let outcome = std::thread::spawn(move || {
        let server = Redis::start(redis::Options::default()).unwrap();
        send.send(server.port()).unwrap();
        panic!("on purpose");
    })
    .join();
    assert!(outcome.is_err());
    assert!(!accepts(receive.recv().unwrap()));
}

#[test]
fn redis_forgets_in_memory_and_remembers_with_an_append_only_file() {
    if !has(programs::find_redis().as_ref(), "redis-server") {
        return;
    }
    for (persistence, expected) in [(Persistence::Memory, "$-1"), (Persistence::Always, "$1\r\n7")]
    {
        let mut server = Redis::start(redis::Options::default().persistence(persistence)).unwrap();
        assert_eq!(redis_says(&server, "SET k 7").unwrap_or_default(), "");
        server.kill().unwrap();
        assert!(!accepts(server.port()));
        server.restart().unwrap();
        assert_eq!(redis_says(&server, "GET k").unwrap(), expected);
    }
}

#[test]
fn a_disabled_command_is_not_known_to_redis() {
    if !has(programs::find_redis().as_ref(), "redis-server") {
        return;
    }
    let server = Redis::start(redis::Options::default().disabled("EVAL")).unwrap();
    let said = redis_says(&server, "EVAL x 0").unwrap();
    assert!(said.contains("unknown command"), "{said}");
    assert_eq!(redis_says(&server, "GET k").unwrap(), "$-1");
}

#[test]
fn a_paused_redis_answers_only_after_it_is_resumed() {
    if !has(programs::find_redis().as_ref(), "redis-server") {
        return;
    }
    let mut server = Redis::start(redis::Options::default()).unwrap();
    server.pause().unwrap();
    assert!(redis_says(&server, "GET k").is_err());
    server.resume().unwrap();
    assert_eq!(redis_says(&server, "GET k").unwrap(), "$-1");
    server.pause().unwrap();
    let pid = server.pid().unwrap();
    drop(server);
    assert!(!is_alive(pid));
}

#[test]
fn pgbouncer_comes_back_on_its_port() {
    if !has(programs::find_postgres().as_ref(), "postgres")
        || !has(programs::find_pgbouncer().as_ref(), "pgbouncer")
    {
        return;
    }
    let postgres = postgres();
    let mut pooler = PgBouncer::start(&postgres, PoolMode::Transaction).unwrap();
    let port = pooler.port();
    assert!(accepts(port) && port != postgres.port());
    pooler.kill().unwrap();
    assert!(!accepts(port));
    pooler.restart().unwrap();
    assert!(accepts(port));
    let pid = pooler.pid().unwrap();
    drop(pooler);
    assert!(!is_alive(pid));
}

#[test]
fn the_deadline_of_a_start_is_seconds_not_minutes() {
    if !has(programs::find_redis().as_ref(), "redis-server") {
        return;
    }
    let before = Instant::now();
    let error = Redis::start(redis::Options::default().setting("no-such-setting", "1"))
        .expect_err("the server refuses the setting");
    assert!(error.to_string().contains("no-such-setting"), "{error}");
    assert!(before.elapsed() < Duration::from_secs(10));
}
