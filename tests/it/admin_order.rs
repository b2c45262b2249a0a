//! What is parked, and what is read again after a crash.

use diesel_async::AsyncConnection as _;
use outbox_diesel::admin::{self, Filter};
use outbox_diesel::publish::RecordingPublisher;
use outbox_diesel::{AsyncEmit as _, Order, Relay, RetryOptions};
use outbox_tests::{TestDatabase, quick};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

use crate::admin::{
    Rejects, attempts, dead, emit, event, gets, got, holds, nothing_parked, strict_relay,
};

#[tokio::test(flavor = "multi_thread")]
async fn what_was_sent_before_a_parked_event_is_not_parked_after_a_crash_before_the_settle() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let rejects = Rejects::of(&broker, &["bad"]);
    let never = attempts(1).settle_interval(Duration::from_secs(3600));
    let relay = Relay::builder(database.pool(1).await).publisher(broker.clone()).options(never);
    let task = tokio::spawn(relay.run(CancellationToken::new()));
    let mut conn = database.connect().await;
    conn.transaction(async |conn| {
        for name in ["1", "bad", "2"] {
            conn.emit(&event("a", name)).await?;
        }
        Ok::<_, outbox_diesel::EmitError>(())
    })
    .await
    .unwrap();
    dead(&database, 1).await;
    holds(&database, "SELECT count(*) = 2 FROM outbox.parked").await;
    task.abort();
    database.sql(
        "UPDATE outbox.cursors SET leased_until = clock_timestamp(); DELETE FROM outbox.relays",
    );
    assert!(database.value::<bool>("SELECT bool_and(tick = 0) FROM outbox.cursors"), "it settled");

    let relay = strict_relay(&database, &broker).await;
    holds(
        &database,
        "SELECT bool_and(tick = (SELECT max(tick) FROM outbox.ticks)) FROM outbox.cursors",
    )
    .await;
    assert!(database.value::<bool>("SELECT count(*) = 2 FROM outbox.parked"));
    assert_eq!(got(&broker, "a"), ["1"]);
    rejects.set(&[]);
    admin::retry_all(&mut conn, &Filter::default()).await.unwrap();
    gets(&broker, "a", &["1", "bad", "2"]).await;
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_events_that_are_retried_together_come_out_in_order_however_they_lie_in_the_table() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let names = ["1", "2", "3", "4", "5"];
    let rejects = Rejects::of(&broker, &names);
    // Each of them dies: none waits behind a dead one.
    let retry = RetryOptions::default().attempts(1).order(Order::Skip);
    let relay = database.relay_with(broker.clone(), quick().retry(retry)).await;
    let mut conn = database.connect().await;
    for name in names {
        emit(&mut conn, event("a", name)).await;
    }
    dead(&database, 5).await;
    // An update moves a row to the end of the table.
    for name in ["4", "1", "5", "3", "2"] {
        database.sql(&format!(
            "UPDATE outbox.parked SET updated_at = clock_timestamp() WHERE event_type = '{name}'"
        ));
    }
    let lie = "SELECT string_agg(event_type, '' ORDER BY ctid) = '41532' FROM outbox.parked";
    assert!(database.value::<bool>(lie));
    rejects.set(&[]);
    admin::retry_all(&mut conn, &Filter::default()).await.unwrap();
    gets(&broker, "a", &names).await;
    nothing_parked(&database).await;
    relay.shutdown().await;
}
