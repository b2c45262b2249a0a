//! What the tests of operators' calls share.

use std::sync::{Arc, Mutex};

use diesel_async::{AsyncConnection as _, AsyncPgConnection};
use outbox_diesel::AsyncEmit as _;
use outbox_diesel::publish::RecordingPublisher;
use outbox_diesel::{RelayHandle, RelayOptions, RetryOptions};
use outbox_tests::{SOON, TestDatabase, TestEvent, eventually, quick};
use uuid::Uuid;

/// Emits one event in a transaction of its own.
pub(crate) async fn emit(conn: &mut AsyncPgConnection, event: TestEvent) -> Uuid {
    conn.transaction(async |conn| conn.emit(&event).await).await.expect("emits").id()
}

/// An event of this aggregate whose type tells it from others.
pub(crate) fn event(aggregate: &str, event_type: &str) -> TestEvent {
    TestEvent::new(aggregate).event_type(event_type)
}

/// What a broker rejects: the event types in the set.
#[derive(Clone, Default)]
pub(crate) struct Rejects(Arc<Mutex<Vec<String>>>);

impl Rejects {
    /// Has the broker reject these event types.
    pub(crate) fn of(broker: &RecordingPublisher, types: &[&str]) -> Self {
        let rejects = Self::default();
        rejects.set(types);
        let asked = rejects.clone();
        broker.reject(move |event| {
            let types = asked.0.lock().expect("no holder panics");
            let is_in = types.iter().any(|known| known == event.event_type());
            is_in.then(|| format!("{} is not wanted", event.event_type()))
        });
        rejects
    }

    /// From now on these.
    pub(crate) fn set(&self, types: &[&str]) {
        *self.0.lock().expect("no holder panics") = types.iter().map(ToString::to_string).collect();
    }
}

/// Options under which a rejected event is dead after this many attempts.
pub(crate) fn attempts(attempts: u16) -> RelayOptions {
    let base = std::time::Duration::from_millis(5);
    quick().retry(RetryOptions::default().base(base).attempts(attempts))
}

/// A relay with [`attempts`] of 1.
pub(crate) async fn strict_relay(
    database: &TestDatabase,
    broker: &RecordingPublisher,
) -> RelayHandle {
    database.relay_with(broker.clone(), attempts(1)).await
}

/// The event types of an aggregate that the broker has, in the order in which they came.
pub(crate) fn got(broker: &RecordingPublisher, aggregate: &str) -> Vec<String> {
    let delivered = broker.delivered();
    let of_it = delivered.iter().filter(|got| got.message.aggregate_id() == aggregate);
    of_it.map(|got| got.message.event_type().to_owned()).collect()
}

/// Waits until the broker has these events of an aggregate, in this order.
pub(crate) async fn gets(broker: &RecordingPublisher, aggregate: &str, types: &[&str]) {
    let enough =
        eventually(SOON, async || (got(broker, aggregate).len() >= types.len()).then_some(()));
    // The failed assertion says more than the time that ran out.
    let _ = tokio::time::timeout(SOON / 2, enough).await;
    assert_eq!(got(broker, aggregate), types);
}

/// Waits until a query returns true.
pub(crate) async fn holds(database: &TestDatabase, query: &str) {
    eventually(SOON, async || database.value::<bool>(query).then_some(())).await;
}

/// Waits until as many events are dead.
pub(crate) async fn dead(database: &TestDatabase, events: u32) {
    holds(database, &format!("SELECT count(*) = {events} FROM outbox.parked WHERE dead")).await;
}

/// Waits until nothing is parked.
pub(crate) async fn nothing_parked(database: &TestDatabase) {
    holds(database, "SELECT count(*) = 0 FROM outbox.parked").await;
}
