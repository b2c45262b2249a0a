//! The timeline, made by hand: a test that says itself when a tick is taken is deterministic.

use crate::TestDatabase;

/// The statement that emits one event of this order, as any language would.
#[must_use]
pub fn insert(order: &str) -> String {
    format!(
        "INSERT INTO outbox.events (topic, aggregate_type, aggregate_id, event_type, payload) \
         VALUES ('order', 'order', '{order}', 'order.created', '{{}}')"
    )
}

impl TestDatabase {
    /// Emits one event of this order in a transaction of its own.
    pub fn insert(&self, order: &str) {
        self.sql(&insert(order));
    }

    /// Takes a tick and returns its id. With a relay about, another one may have been faster.
    #[must_use]
    pub fn tick(&self) -> i64 {
        self.value("outbox.take_tick()")
    }

    /// Takes ticks that show nothing.
    pub fn ticks(&self, count: usize) {
        // Each in a transaction of its own, though all in one message.
        self.sql(&"BEGIN; SELECT outbox.take_tick(); COMMIT;".repeat(count));
    }

    /// Cuts all connections of relays, as a failover does.
    pub fn cut_relays(&self) {
        self.sql(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity \
             WHERE datname = current_database() AND application_name = 'relay'",
        );
    }
}
