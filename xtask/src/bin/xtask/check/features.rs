//! Who takes less compiles less: what each set of features must not pull in.

use super::cargo::{output, run};
use super::{Context, Verdict};

/// For packages and sets of features: the packages that must not be among the dependencies.
const RULES: &[(&str, &[&str], &[&str])] = &[
    // Who uses async connections only needs no libpq on the machine.
    (
        "outbox-diesel",
        &["--features", "relay,redis"],
        &["pq-sys", "mysqlclient-sys", "libsqlite3-sys"],
    ),
    // The command needs no C library, and one provider of cryptography.
    ("outbox-cli", &[], &["pq-sys", "openssl-sys", "native-tls", "aws-lc-sys"]),
    // Who only defines events compiles no database, no relay and no broker.
    (
        "outbox-diesel",
        &["--no-default-features"],
        &["diesel", "diesel-async", "tokio-postgres", "bb8", "tokio", "redis"],
    ),
];

/// What the compiler must refuse without the defaults: an emit that nothing proves to be in a
/// transaction.
const REFUSED: &[&str] = &[
    "test",
    "--quiet",
    "--package",
    "outbox-diesel",
    "--no-default-features",
    "--features",
    "async",
    "--test",
    "transaction_ui",
];

/// Asks cargo for the dependencies of each set, and the compiler for what it refuses.
pub(crate) fn check(context: &Context) -> Verdict {
    for (name, features, forbidden) in RULES {
        let tree = ["tree", "--package", name, "--edges", "normal", "--prefix", "none"];
        let tree = output(context, &[&tree, *features].concat())?;
        for package in tree.lines().filter_map(|line| line.split(' ').next()) {
            if forbidden.contains(&package) {
                return Err(format!("{name} {} needs {package}", features.join(" ")).into());
            }
        }
    }
    run(context, REFUSED)
}
