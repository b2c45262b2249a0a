//! What is parked, and what is read again after a crash.

use diesel_async::AsyncConnection as _;
use outbox_diesel::admin::{self, Filter};
use outbox_diesel::publish::RecordingPublisher;
use outbox_diesel::{AsyncEmit as _, Relay};
use outbox_tests::TestDatabase;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

use crate::admin::{Rejects, attempts, dead, event, gets, got, holds, strict_relay};

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
    database.sql("UPDATE outbox.cursors SET leased_until = '-infinity'; DELETE FROM outbox.relays");
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
