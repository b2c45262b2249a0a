//! TLS to Redis.

use std::fs;

use outbox_tests::{TestDatabase, TestRedis, eventually};
use redis::AsyncCommands as _;
use xtask::redis::{Options, Redis};

use crate::doctor::told;
use crate::program::{PATIENCE, Ran, Running, command, free_port, outbox, run};
use crate::tls::certificates;

/// What a Valkey says that was built without it.
const WITHOUT_TLS: &str = "Failed finding TLS support";

#[tokio::test(flavor = "multi_thread")]
async fn redis_is_verified_by_the_authority_that_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (authority, certificate, key) = certificates("localhost");
    let (stranger, _, _) = certificates("localhost");
    for (name, text) in [
        ("ca.pem", authority.as_str()),
        ("other.pem", &stranger),
        ("server.pem", &certificate),
        ("server.key", &key),
        ("empty.pem", ""),
    ] {
        fs::write(path(name), text).unwrap();
    }
    let port = free_port();
    let options = Options::default()
        .setting("tls-port", port.to_string())
        .setting("tls-cert-file", path("server.pem"))
        .setting("tls-key-file", path("server.key"))
        .setting("tls-ca-cert-file", path("ca.pem"))
        .setting("tls-auth-clients", "no");
    let server = match Redis::start(options) {
        Ok(server) => server,
        // As the one from PyPI is built.
        Err(error) if error.to_string().contains(WITHOUT_TLS) => {
            eprintln!("SKIPPED: {error}");
            return;
        }
        Err(error) => panic!("a private Redis starts: {error}"),
    };
    let redis = TestRedis::on(&server.url());
    let url = |host: &str| format!("rediss://{host}:{port}/");
    let (ca, other) = (path("ca.pem"), path("other.pem"));

    // The relay: with the right authority it delivers.
    let database = TestDatabase::new();
    database.insert("a");
    let relay =
        Running::relay(&database.url(), &url("localhost"), redis.prefix(), &["--redis-ca", &ca]);
    let stream = format!("{}order", redis.prefix());
    let mut conn = redis.connect().await;
    eventually(PATIENCE, async || (conn.xlen::<_, u64>(&stream).await == Ok(1)).then_some(()))
        .await;
    drop(relay);

    // The doctor: it says in one line why the server is not trusted.
    let ask = |host: &str, authority: &str| -> Ran {
        let mut command = command(&database.url());
        command.args(["doctor", "--json", "--redis-url", &url(host), "--redis-ca", authority]);
        run(command)
    };
    let unreachable = |ran: &Ran| {
        let findings = ran.value()["findings"].clone();
        let findings = findings.as_array().unwrap();
        findings.iter().find(|finding| finding["name"] == "broker-unreachable").cloned()
    };
    let ran = ask("localhost", &ca);
    assert_eq!(unreachable(&ran), None, "{ran:?}");
    for (host, authority) in [("localhost", &other), ("127.0.0.1", &ca)] {
        let ran = ask(host, authority);
        let finding = unreachable(&ran).unwrap_or_else(|| panic!("{ran:?}"));
        let told = told(&finding);
        assert!(told.contains("certificate"), "{told}");
        assert_eq!(ran.code, Some(20), "{ran:?}");
    }

    // A relay with the wrong one delivers nothing, and says why.
    database.insert("b");
    let _relay =
        Running::relay(&database.url(), &url("localhost"), redis.prefix(), &["--redis-ca", &other]);
    let told = eventually(PATIENCE, async || {
        let found = outbox(&database, &["doctor", "--json"]).value();
        let first = found["findings"][0].clone();
        (first["name"] == "publisher-unavailable").then(|| told(&first))
    })
    .await;
    assert!(told.contains("certificate"), "{told}");
    assert_eq!(conn.xlen::<_, u64>(&stream).await, Ok(1));

    for (file, why) in [("/nowhere.pem", "No such file"), (&path("empty.pem"), "no certificate")] {
        let said = ask("localhost", file).failed(2);
        assert!(said.contains(file) && said.contains(why), "{said}");
    }
}
