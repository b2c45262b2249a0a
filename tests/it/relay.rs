//! The relay: what is committed goes out, in order, once.

use diesel_async::{AsyncConnection as _, SimpleAsyncConnection as _};
use outbox_diesel::AsyncEmit as _;
use outbox_diesel::publish::RecordingPublisher;
use outbox_tests::{SOON, TestDatabase, TestEvent, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn a_committed_event_is_published_with_all_its_parts() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let relay = database.relay(broker.clone()).await;
    let mut conn = database.connect().await;
    let event = TestEvent::new("o-1")
        .topic("orders")
        .event_version(2_i16)
        .dedup_key("k1")
        .header("tenant", "acme")
        .payload(r#"{"b":1,  "a":"é\u0000"}"#);
    let id = conn.transaction(async |conn| conn.emit(&event).await).await.expect("emits").id();

    let sent = eventually(SOON, async || broker.delivered().pop()).await.message;
    assert_eq!(sent.id(), id);
    assert_eq!(sent.topic(), "orders");
    assert_eq!((sent.aggregate_type(), sent.aggregate_id()), ("order", "o-1"));
    assert_eq!((sent.event_type(), sent.event_version()), ("order.created", 2));
    assert_eq!(sent.dedup_key(), Some("k1"));
    assert_eq!(sent.payload(), r#"{"b":1,  "a":"é\u0000"}"#);
    assert_eq!(sent.headers(), r#"{"tenant":"acme"}"#);
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rolled_back_event_is_never_published() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let relay = database.relay(broker.clone()).await;
    let mut conn = database.connect().await;
    conn.transaction(async |conn| {
        conn.emit(&TestEvent::new("phantom")).await?;
        Err::<(), _>(diesel::result::Error::RollbackTransaction)
    })
    .await
    .expect_err("rolled back");
    conn.transaction(async |conn| {
        conn.emit(&TestEvent::new("kept")).await?;
        conn.transaction(async |conn| {
            conn.emit(&TestEvent::new("phantom")).await?;
            Err::<(), _>(diesel::result::Error::RollbackTransaction)
        })
        .await
        .expect_err("rolled back");
        conn.emit(&TestEvent::new("kept too")).await
    })
    .await
    .expect("commits");

    let sent = eventually(SOON, async || {
        let sent = broker.delivered();
        (sent.len() >= 2).then_some(sent)
    })
    .await;
    let ids: Vec<_> = sent.iter().map(|sent| sent.message.aggregate_id().to_owned()).collect();
    assert_eq!(ids, ["kept", "kept too"]);
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_transaction_delays_only_its_own_events() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let relay = database.relay(broker.clone()).await;
    let mut open = database.connect().await;
    open.batch_execute("BEGIN").await.expect("begins");
    open.emit(&TestEvent::new("early")).await.expect("emits");
    let mut conn = database.connect().await;
    conn.transaction(async |conn| conn.emit(&TestEvent::new("late")).await).await.expect("emits");

    eventually(SOON, async || (broker.delivered().len() == 1).then_some(())).await;
    open.batch_execute("COMMIT").await.expect("commits");
    eventually(SOON, async || (broker.delivered().len() == 2).then_some(())).await;
    let ids: Vec<_> =
        broker.delivered().iter().map(|sent| sent.message.aggregate_id().to_owned()).collect();
    assert_eq!(ids, ["late", "early"]);
    relay.shutdown().await;
}
