//! `outbox tail`.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use diesel::connection::SimpleConnection as _;
use outbox_tests::{TestDatabase, eventually};

use crate::program::{PATIENCE, command};

const EMIT: &str =
    "INSERT INTO outbox.events (topic, aggregate_type, aggregate_id, event_type, payload) VALUES ";

#[tokio::test(flavor = "multi_thread")]
async fn what_commits_is_shown_once_in_order_and_what_is_rolled_back_is_not() {
    let database = TestDatabase::new();
    // Of before: not followed.
    database.sql(&format!("{EMIT}('orders', 'order', 'old', 'order.placed', '{{}}')"));
    let mut tail = command(&database.url());
    tail.args(["tail", "--json", "--topic", "orders", "--limit", "4"]).stdout(Stdio::piped());
    let mut tail = tail.spawn().unwrap();
    // It has begun when it has taken its tick.
    eventually(PATIENCE, async || {
        database.value::<bool>("SELECT count(*) > 1 FROM outbox.ticks").then_some(())
    })
    .await;
    let mut late = database.sync();
    late.batch_execute(&format!(
        "BEGIN; {EMIT}('orders', 'order', 'late', 'order.placed', '{{}}')"
    ))
    .unwrap();
    database.sql(&format!(
        "BEGIN; {EMIT}('orders', 'order', 'never', 'order.placed', '{{}}'); ROLLBACK"
    ));
    database.sql(&format!("{EMIT}('orders', 'order', 'a', 'order.placed', '{{\"n\": 1.10}}')"));
    database.sql(&format!("{EMIT}('carts', 'cart', 'other', 'cart.opened', '{{}}')"));
    database.sql(&format!("{EMIT}('orders', 'order', 'b', 'order.placed', '{{}}')"));
    let mut lines = BufReader::new(tail.stdout.take().unwrap()).lines();
    let mut next =
        || serde_json::from_str::<serde_json::Value>(&lines.next().unwrap().unwrap()).unwrap();
    let first = next();
    assert_eq!(first["aggregate_id"], "a");
    assert_eq!(next()["aggregate_id"], "b");
    late.batch_execute("COMMIT").unwrap();
    assert_eq!(next()["aggregate_id"], "late");
    database.sql(&format!("{EMIT}('orders', 'order', 'c', 'order.placed', '{{}}')"));
    assert_eq!(next()["aggregate_id"], "c");
    assert_eq!(tail.wait().unwrap().code(), Some(0));
    assert!(
        database.value::<bool>("SELECT bool_and(tick = 0) FROM outbox.cursors"),
        "it moved a cursor"
    );
}
