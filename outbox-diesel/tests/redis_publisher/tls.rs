//! TLS, with a certificate of our own.

use std::process::Command;

use outbox_diesel::publish::redis::RedisPublisher;
use uuid::Uuid;

use crate::contract::Broker;
use crate::events::{contact, events, send, stamp, verdicts};
use crate::server::{RedisServer, free_port};

const CHILD_URL: &str = "OUTBOX_TEST_TLS_URL";

/// The system's root certificates come from the environment, and a running process can't change
/// its own: the test runs [`child`] in a second one.
#[tokio::test]
async fn tls_needs_a_trusted_certificate() {
    if !RedisServer::knows_tls() {
        eprintln!("SKIPPED: this server was built without TLS");
        return;
    }
    let directory = std::env::temp_dir().join(Uuid::now_v7().to_string());
    std::fs::create_dir(&directory).expect("a directory");
    let file = |name: &str| directory.join(name).to_string_lossy().into_owned();
    let (certificate, key) = (file("cert.pem"), file("key.pem"));
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"])
        .args(["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .args(["-keyout", &key, "-out", &certificate])
        .output()
        .expect("openssl");
    assert!(made.status.success(), "{made:?}");
    let port = free_port().to_string();
    let files = ["--tls-cert-file", &certificate, "--tls-key-file", &key];
    let options = ["--tls-ca-cert-file", &certificate, "--tls-auth-clients", "no"];
    let arguments = [&["--tls-port", &port], &files[..], &options[..]].concat();
    let server = RedisServer::start_with(&arguments).await;
    let url = format!("rediss://localhost:{port}/");

    let mut distrustful = RedisPublisher::connect_lazily(url.as_str()).expect("a valid url");
    let refused = contact(&mut distrustful, &stamp(), &events([1])).await;
    assert!(refused.expect_err("unknown issuer").0.contains("certificate"));

    let child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "tls::child", "--ignored"])
        .env("SSL_CERT_FILE", &certificate)
        .env(CHILD_URL, &url)
        .output()
        .expect("a second process");
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
    assert_eq!(server.seqs("orders").await, [1]);
    let _ = std::fs::remove_dir_all(directory);
}

#[tokio::test]
#[ignore = "the second process of another test"]
async fn child() {
    let Ok(url) = std::env::var(CHILD_URL) else { return };
    let mut publisher = RedisPublisher::connect_lazily(url).expect("a valid url");
    assert_eq!(verdicts(&send(&mut publisher, &stamp(), &events([1])).await), "d");
}
