//! TLS to PostgreSQL, as `sslmode` asks for it.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};

use outbox_tests::TestDatabase;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use xtask::postgres::{Durability, Options, Postgres};

use crate::program::{Ran, command, run};

/// An authority, and a certificate of it for this name.
pub(crate) fn certificates(name: &str) -> (String, String, String) {
    let authority_key = KeyPair::generate().unwrap();
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority_pem = authority.self_signed(&authority_key).unwrap().pem();
    let issuer = Issuer::new(authority, authority_key);
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec![name.to_owned()]).unwrap();
    let certificate = certificate.signed_by(&key, &issuer).unwrap();
    (authority_pem, certificate.pem(), key.serialize_pem())
}

#[test]
fn the_server_is_verified_as_far_as_sslmode_asks() {
    let Ok(server) = Postgres::start(Options::default().durability(Durability::None)) else {
        eprintln!("skipped: no PostgreSQL program");
        return;
    };
    let database = TestDatabase::on(&server.url("postgres"));
    let data: String = database.value("SELECT current_setting('data_directory')");
    let owner = fs::metadata(&data).unwrap();
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (authority, certificate, key) = certificates("127.0.0.1");
    let (stranger, _, _) = certificates("127.0.0.1");
    for (name, text) in [
        ("ca.pem", &authority),
        ("other.pem", &stranger),
        ("server.pem", &certificate),
        ("server.key", &key),
    ] {
        fs::write(path(name), text).unwrap();
    }
    fs::set_permissions(path("server.key"), fs::Permissions::from_mode(0o600)).unwrap();
    chown(path("server.key"), Some(owner.uid()), Some(owner.gid())).unwrap();
    // TLS only.
    let hba: String = database.value("SELECT current_setting('hba_file')");
    let rules = fs::read_to_string(&hba).unwrap();

    let ask = |host: &str, query: &str| -> Ran {
        let mut command =
            command(&format!("{}?{query}", database.url().replace("127.0.0.1", host)));
        command.args(["subscriptions", "list"]);
        run(command)
    };
    let answers = |host: &str, query: &str| ask(host, query).said();
    let refuses = |host: &str, query: &str, why: &str| {
        let said = ask(host, query).failed(3);
        assert!(said.contains(why), "{query}: {said}");
        // One line, and at most one of advice below it.
        let is_error = |line: &&str| !line.starts_with(' ');
        assert_eq!(said.lines().filter(is_error).count(), 1, "{query}: {said}");
    };

    // Without TLS.
    answers("127.0.0.1", "sslmode=prefer");
    answers("127.0.0.1", "sslmode=disable");
    refuses("127.0.0.1", "sslmode=require", "does not support TLS");

    for setting in [
        format!("ssl_cert_file = '{}'", path("server.pem")),
        format!("ssl_key_file = '{}'", path("server.key")),
        "ssl = on".to_owned(),
    ] {
        database.sql(&format!("ALTER SYSTEM SET {setting}"));
    }
    fs::write(&hba, rules.replace("\nhost ", "\nhostssl ")).unwrap();
    database.sql("SELECT pg_reload_conf()");
    // The postmaster is told by a signal: it takes a moment.
    let deadline = std::time::Instant::now() + crate::program::PATIENCE;
    while ask("127.0.0.1", "sslmode=disable").code == Some(0) {
        assert!(std::time::Instant::now() < deadline, "{}", server.log());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }

    refuses("127.0.0.1", "sslmode=disable", "no encryption");
    answers("127.0.0.1", "sslmode=prefer");
    answers("127.0.0.1", "sslmode=require");
    let (ca, other) = (path("ca.pem"), path("other.pem"));
    answers("127.0.0.1", &format!("sslmode=verify-full&sslrootcert={ca}"));
    answers("127.0.0.1", &format!("sslmode=verify-ca&sslrootcert={ca}"));
    // Another name for the same machine: verify-ca does not mind.
    answers("localhost", &format!("sslmode=verify-ca&sslrootcert={ca}"));
    refuses("localhost", &format!("sslmode=verify-full&sslrootcert={ca}"), "certificate");
    // As in libpq, a root certificate makes `require` verify.
    for mode in ["require", "verify-ca", "verify-full"] {
        refuses("127.0.0.1", &format!("sslmode={mode}&sslrootcert={other}"), "certificate");
    }
    refuses("127.0.0.1", "sslmode=verify-full", "certificate");
    let said = ask("127.0.0.1", "sslmode=verify-full&sslrootcert=/nowhere.pem").failed(2);
    assert!(said.contains("/nowhere.pem"), "{said}");
    let said = ask("127.0.0.1", "sslmode=allow").failed(2);
    assert!(said.contains("verify-full"), "{said}");
}
