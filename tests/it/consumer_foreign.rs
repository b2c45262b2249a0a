//! What no Rust type knows, and what comes after it was forgotten.

use std::time::{Duration, SystemTime};

use diesel_async::RunQueryDsl as _;
use outbox_diesel::OutboxEvent;
use outbox_diesel::inbox::{self, Inbox};
use outbox_diesel::publish::redis::RedisPublisher;
use outbox_diesel::testing::TestRelay;
use outbox_tests::{SOON, TestDatabase, TestRedis, eventually};
use serde::{Deserialize, Serialize};
use uuid::{NoContext, Timestamp, Uuid};

use super::consumer::{consumer, stream};

#[derive(Serialize, Deserialize, OutboxEvent)]
#[outbox(aggregate = "order")]
struct OrderCreated {
    #[outbox(aggregate_id)]
    id: i64,
}

const BILL: &str = "INSERT INTO bills VALUES ($1)";

#[tokio::test(flavor = "multi_thread")]
async fn events_that_no_code_knows_are_published_as_stored_and_hold_up_nobody() {
    let (database, redis) = (TestDatabase::new(), TestRedis::new());
    database.sql("CREATE TABLE bills (order_id bigint NOT NULL)");
    let stream = stream(&redis).await;
    // A type that was renamed, a version that never was, payloads of other shapes.
    database.sql(
        r#"INSERT INTO outbox.events (topic, aggregate_type, aggregate_id, event_type, event_version, payload) VALUES
           ('order', 'order', '1', 'OldName', 1, '{"id":1}'),
           ('order', 'order', '2', 'order.created', 32767, '{"id":2}'),
           ('order', 'order', '3', 'order.created', 1, '"no  order" '),
           ('order', 'order', '3', 'order.created', 1, '{"id":3}'),
           ('order', 'order', '4', 'order.created', 1, '{"id":4}')"#,
    );
    let publisher = RedisPublisher::connect_lazily(redis.url()).expect("a URL");
    let pool = database.pool(4).await;
    let mut relay = TestRelay::new(pool.clone(), publisher.stream_prefix(redis.prefix()));
    assert_eq!(relay.deliver_all().await.expect("delivers"), 5);
    assert_eq!(database.value::<i64>("SELECT count(*) FROM outbox.parked"), 0);

    let running = consumer(&redis.url(), &stream, "one")
        .inbox(pool, Inbox::new("billing").expect("a good name"))
        .on::<OrderCreated>(async |event, ctx| {
            let bill = diesel::sql_query(BILL).bind::<diesel::sql_types::BigInt, _>(event.id);
            bill.execute(ctx).await?;
            Ok(())
        })
        .spawn()
        .expect("good options");
    let bills = "SELECT ARRAY(SELECT order_id::text FROM bills ORDER BY 1)";
    eventually(SOON, async || {
        let done = database.value::<Vec<String>>(bills) == ["3", "4"];
        (done && stream.pending("billing").await == 0).then_some(())
    })
    .await;
    running.shutdown().await.expect("stops");
    let dead: Vec<_> = stream
        .dead()
        .await
        .iter()
        .map(|letter| ["event_type", "event_version", "payload"].map(|name| letter[name].clone()))
        .collect();
    for letter in [
        ["OldName", "1", r#"{"id":1}"#],
        ["order.created", "32767", r#"{"id":2}"#],
        ["order.created", "1", r#""no  order" "#],
    ] {
        assert!(dead.contains(&letter.map(str::to_owned)), "{letter:?} in {dead:?}");
    }
    assert_eq!(dead.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_entry_whose_record_was_forgotten_is_buried_and_not_handled_again() {
    let (database, redis) = (TestDatabase::new(), TestRedis::new());
    database.sql("CREATE TABLE bills (order_id bigint NOT NULL)");
    let then = SystemTime::now() - Duration::from_secs(40 * 24 * 60 * 60);
    let since = then.duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    let id = Uuid::new_v7(Timestamp::from_unix(NoContext, since.as_secs(), 0));
    let mut conn = database.sync();
    let billing = Inbox::new("billing").expect("a good name");
    billing.once(&mut conn, id, |_| diesel::QueryResult::Ok(())).expect("handles");
    database.sql("UPDATE outbox.inbox SET handled_at = handled_at - interval '39 days'");
    assert_eq!(inbox::drop_partitions(&mut conn, inbox::RETENTION), Ok(1));

    // A consumer that had it in hand comes back after all that time.
    let stream = stream(&redis).await;
    stream.add_again(id, 1, r#"{"id":1}"#).await;
    let running = consumer(&redis.url(), &stream, "one")
        .inbox(database.pool(1).await, billing)
        .on::<OrderCreated>(async |event, ctx| {
            let bill = diesel::sql_query(BILL).bind::<diesel::sql_types::BigInt, _>(event.id);
            bill.execute(ctx).await?;
            Ok(())
        })
        .spawn()
        .expect("good options");
    let buried = async || stream.dead().await.into_iter().next();
    let letter = eventually(SOON, buried).await;
    running.shutdown().await.expect("stops");
    assert!(letter["dead_error"].contains("older than what the inbox remembers"), "{letter:?}");
    assert_eq!(letter["dead_tries"], "1", "trying again would be in vain");
    assert_eq!(database.value::<i64>("SELECT count(*) FROM bills"), 0);
}
