//! Typed handlers: an event comes as its type, in a transaction that records that it was handled.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use diesel_async::RunQueryDsl as _;
use outbox_diesel::consumer::{Consumer, HandlerError, Transactional, Unavailable, Unhandled};
use outbox_diesel::inbox::Inbox;
use outbox_diesel::{OutboxEvent, outbox_events};
use outbox_tests::{SOON, TestDatabase, TestRedis, TestStream, eventually};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::consumer::{consumer, stream};

#[derive(Debug, PartialEq, Serialize, Deserialize, OutboxEvent)]
#[outbox(aggregate = "order", version = 2, upcast(1 = CreatedV1))]
struct OrderCreated {
    #[outbox(aggregate_id)]
    id: i64,
    cents: i64,
}

#[derive(Deserialize)]
struct CreatedV1 {
    id: i64,
}

impl From<CreatedV1> for OrderCreated {
    fn from(old: CreatedV1) -> Self {
        Self { id: old.id, cents: 100 }
    }
}

#[derive(Debug, PartialEq, Serialize, Deserialize, OutboxEvent)]
#[outbox(aggregate = "payment", aggregate_id = "id")]
#[serde(untagged)]
enum Payment {
    Captured { id: i64, captured: i64 },
    Refunded { id: i64, refunded: i64 },
}

/// What a handler emits in turn.
#[derive(Debug, PartialEq, Serialize, Deserialize, OutboxEvent)]
#[outbox(aggregate = "bill", aggregate_id = "order")]
struct BillSent {
    order: i64,
}

outbox_events! {
    #[derive(Debug)]
    enum ShopEvent { OrderCreated, Payment }
}

fn database() -> TestDatabase {
    let database = TestDatabase::new();
    database.sql("CREATE TABLE bills (order_id bigint NOT NULL, cents bigint NOT NULL)");
    database
}

async fn transactional(
    redis: &TestRedis,
    stream: &TestStream,
    database: &TestDatabase,
) -> Consumer<Transactional> {
    consumer(&redis.url(), stream, "one")
        .inbox(database.pool(4).await, Inbox::new("billing").expect("a good name"))
}

fn bill(order: i64, cents: i64) -> diesel::query_builder::SqlQuery {
    diesel::sql_query(format!("INSERT INTO bills VALUES ({order}, {cents})"))
}

fn bills(database: &TestDatabase) -> i64 {
    database.value("SELECT coalesce(sum(cents), 0)::bigint FROM bills")
}

async fn acknowledged(stream: &TestStream, database: &TestDatabase, handled: i64) {
    eventually(SOON, async || {
        let recorded: i64 = database.value("SELECT count(*) FROM outbox.inbox");
        (recorded == handled && stream.pending("billing").await == 0).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_gets_its_event_in_every_version_that_the_type_can_read() {
    let (database, redis) = (database(), TestRedis::new());
    let stream = stream(&redis).await;
    let id = Uuid::now_v7();
    stream.add_event(id, 1, r#"{"id":1,"cents":5}"#, "order.created", 2).await;
    stream.add_event(id, 1, r#"{"id":1,"cents":5}"#, "order.created", 2).await;
    stream.add_event(Uuid::now_v7(), 2, r#"{"id":2}"#, "order.created", 1).await;
    let running = transactional(&redis, &stream, &database)
        .await
        .on::<OrderCreated>(async |event, ctx| {
            assert_eq!(ctx.delivery().aggregate_id(), event.id.to_string());
            bill(event.id, event.cents).execute(ctx).await?;
            ctx.emit(&BillSent { order: event.id }).await?;
            Ok(())
        })
        .spawn()
        .expect("good options");
    acknowledged(&stream, &database, 2).await;
    running.shutdown().await.expect("stops");
    assert_eq!(bills(&database), 105, "a repeat has no effect, and an old version is lifted");
    let mut emitted = database.emitted();
    emitted.sort_unstable();
    assert_eq!(emitted, ["1", "2"], "what a handler emits commits with its effects");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_of_a_list_gets_all_its_events_as_one_type() {
    let (database, redis) = (database(), TestRedis::new());
    let stream = stream(&redis).await;
    stream.add_event(Uuid::now_v7(), 1, r#"{"id":1,"cents":5}"#, "order.created", 2).await;
    stream.add_event(Uuid::now_v7(), 1, r#"{"id":1,"captured":3}"#, "payment.captured", 1).await;
    stream.add_event(Uuid::now_v7(), 1, r#"{"id":1,"refunded":9}"#, "payment.refunded", 1).await;
    let running = transactional(&redis, &stream, &database)
        .await
        .on_set::<ShopEvent>(async |event, ctx| {
            let (order, cents) = match event {
                ShopEvent::OrderCreated(OrderCreated { id, cents }) => (id, cents),
                ShopEvent::Payment(Payment::Captured { id, captured }) => (id, 10 * captured),
                ShopEvent::Payment(Payment::Refunded { id, refunded }) => (id, 100 * refunded),
            };
            bill(order, cents).execute(ctx).await?;
            Ok(())
        })
        .spawn()
        .expect("good options");
    acknowledged(&stream, &database, 3).await;
    running.shutdown().await.expect("stops");
    assert_eq!(bills(&database), 935);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_inbox_a_handler_gets_its_event_and_how_it_came() {
    let redis = TestRedis::new();
    let stream = stream(&redis).await;
    stream.add_event(Uuid::now_v7(), 1, r#"{"id":1}"#, "order.created", 1).await;
    let (send, mut receive) = tokio::sync::mpsc::unbounded_channel();
    let running = consumer(&redis.url(), &stream, "one")
        .on::<OrderCreated>(async move |event, delivery| {
            send.send((event, delivery.event_version()))?;
            Ok(())
        })
        .spawn()
        .expect("good options");
    let got = tokio::time::timeout(SOON, receive.recv()).await.expect("soon");
    assert_eq!(got, Some((OrderCreated { id: 1, cents: 100 }, 1)));
    running.shutdown().await.expect("stops");
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_types_and_versions_are_skipped_with_a_report_and_without_a_trace() {
    let (database, redis) = (database(), TestRedis::new());
    let stream = stream(&redis).await;
    stream.add_event(Uuid::now_v7(), 1, "not JSON", "order.renamed", 1).await;
    stream.add_event(Uuid::now_v7(), 1, r#"{"id":1}"#, "order.created", 3).await;
    stream.add_event(Uuid::now_v7(), 1, r#"{"id":1,"cents":5}"#, "order.created", 2).await;
    let reports = Arc::new(Mutex::new(HashSet::new()));
    let told = Arc::clone(&reports);
    let running = transactional(&redis, &stream, &database)
        .await
        .unknown(Unhandled::Skip)
        .on_unknown(move |event| {
            let mut told = told.lock().expect("no holder panics");
            told.insert((event.event_type.clone(), event.event_version));
        })
        .on::<OrderCreated>(async |event, ctx| {
            bill(event.id, event.cents).execute(ctx).await?;
            Ok(())
        })
        .spawn()
        .expect("good options");
    acknowledged(&stream, &database, 1).await;
    running.shutdown().await.expect("stops");
    let expected = [("order.renamed".to_owned(), 1), ("order.created".to_owned(), 3)];
    assert_eq!(*reports.lock().expect("no holder panics"), HashSet::from(expected));
    assert_eq!((bills(&database), stream.dead().await.len()), (5, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_of_another_shape_is_buried_at_once_and_not_quoted() {
    let (database, redis) = (database(), TestRedis::new());
    let stream = stream(&redis).await;
    stream.add_event(Uuid::now_v7(), 1, r#"{"id":"secret"}"#, "order.created", 2).await;
    stream.add_event(Uuid::now_v7(), 1, "secret", "order.created", 1).await;
    stream.add_event(Uuid::now_v7(), 1, r#"{"id":1,"cents":5}"#, "order.created", 2).await;
    let running = transactional(&redis, &stream, &database)
        .await
        .on::<OrderCreated>(async |event, ctx| {
            bill(event.id, event.cents).execute(ctx).await?;
            Ok(())
        })
        .spawn()
        .expect("good options");
    acknowledged(&stream, &database, 1).await;
    running.shutdown().await.expect("stops");
    let dead = stream.dead().await;
    assert_eq!(dead.len(), 2);
    for letter in dead {
        let error = &letter["dead_error"];
        assert!(error.contains("order.created") && !error.contains("secret"), "{error}");
        assert_eq!(letter["dead_tries"], "1");
    }
    assert_eq!(bills(&database), 5, "the next event of the aggregate went on");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_handler_leaves_neither_effect_nor_record_and_is_tried_again() {
    let (database, redis) = (database(), TestRedis::new());
    let stream = stream(&redis).await;
    for n in 0..20 {
        let payload = format!(r#"{{"id":{n},"cents":1}}"#);
        stream.add_event(Uuid::now_v7(), n % 4, payload, "order.created", 2).await;
    }
    let running = transactional(&redis, &stream, &database)
        .await
        .on::<OrderCreated>(async |event, ctx| {
            bill(event.id, event.cents).execute(ctx).await?;
            match ctx.delivery().attempt() {
                1 => Err("after its effect".into()),
                2 => panic!("after its effect"),
                3 => {
                    // The transaction is aborted, and the error swallowed.
                    diesel::sql_query("SELECT 1 / 0").execute(ctx).await.ok();
                    Ok(())
                }
                _ => Ok(()),
            }
        })
        .spawn()
        .expect("good options");
    acknowledged(&stream, &database, 20).await;
    running.shutdown().await.expect("stops");
    assert_eq!((bills(&database), stream.dead().await.len()), (20, 0));
    let orders =
        "SELECT string_agg(order_id::text, ',' ORDER BY ctid) FROM bills WHERE order_id % 4 = 3";
    assert_eq!(database.value::<String>(orders), "3,7,11,15,19", "in order, for all that");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_of_the_database_costs_no_tries_and_no_dead_letters() {
    let (database, redis) = (database(), TestRedis::new());
    let role = format!("{}_billing", database.name());
    database.sql(&format!("CREATE ROLE {role} SUPERUSER NOLOGIN"));
    let stream = stream(&redis).await;
    stream.add_event(Uuid::now_v7(), 1, r#"{"id":1,"cents":5}"#, "order.created", 2).await;
    let manager =
        diesel_async::pooled_connection::AsyncDieselConnectionManager::new(database.url_as(&role));
    let pool =
        bb8::Pool::builder().connection_timeout(Duration::from_millis(20)).build_unchecked(manager);
    let tries = Arc::new(Mutex::new(Vec::new()));
    let record = Arc::clone(&tries);
    let running = consumer(&redis.url(), &stream, "one")
        .max_deliveries(2)
        .retry_base(Duration::from_millis(2))
        .inbox(pool, Inbox::new("billing").expect("a good name"))
        .on::<OrderCreated>(async move |event, ctx| {
            let attempt = ctx.delivery().attempt();
            record.lock().expect("no holder panics").push(attempt);
            // Something else that the handler needs is away too, for a while.
            if record.lock().expect("no holder panics").len() < 5 {
                return Err(Unavailable::because("the bank is closed").into());
            }
            bill(event.id, event.cents).execute(ctx).await?;
            Ok::<_, HandlerError>(())
        })
        .spawn()
        .expect("good options");
    // Far more often than a handler may fail.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(stream.dead().await.len(), 0);
    database.sql(&format!("ALTER ROLE {role} LOGIN"));
    acknowledged(&stream, &database, 1).await;
    running.shutdown().await.expect("stops");
    assert_eq!((bills(&database), stream.dead().await.len()), (5, 0));
    assert_eq!(*tries.lock().expect("no holder panics"), [1; 5]);
}
