//! The shop: an order, and the events that tell of it.

pub(crate) mod asynchronous;
pub(crate) mod blocking;

use outbox_diesel::OutboxEvent;
use serde::{Deserialize, Serialize};

pub(crate) const TOPIC: &str = "orders";

/// What happens to an order. On the wire: `order.opened` and so on, keyed by the order's id.
#[derive(Debug, Serialize, Deserialize, OutboxEvent)]
#[serde(tag = "what", rename_all = "snake_case")]
#[outbox(aggregate = "order", topic = "orders", aggregate_id = "order_id")]
pub(crate) enum OrderEvent {
    Opened { order_id: i64, revision: i64 },
    ItemAdded { order_id: i64, revision: i64, article: String, cents: u32 },
    VoucherRedeemed { order_id: i64, revision: i64 },
}

pub(crate) const CREATE_TABLES: &str = "
    CREATE TABLE orders (
        id       bigint PRIMARY KEY,
        revision bigint NOT NULL
    )";

diesel::table! {
    orders (id) {
        id -> Int8,
        /// How many events the order has had.
        revision -> Int8,
    }
}

/// What one transaction does.
#[derive(Debug)]
pub(crate) struct Purchase {
    pub(crate) order: i64,
    /// How many events it emits.
    pub(crate) events: i64,
    pub(crate) ending: Ending,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    Paid,
    /// A savepoint rolls back: its event must never be published, the others must.
    VoucherRefused,
    /// The transaction rolls back: none of its events must ever be published.
    Declined,
}

impl Purchase {
    /// The events that bring the order to this revision.
    fn events(&self, revision: i64) -> Vec<OrderEvent> {
        (revision - self.events + 1..=revision)
            .map(|revision| match revision {
                1 => OrderEvent::Opened { order_id: self.order, revision },
                _ => OrderEvent::ItemAdded {
                    order_id: self.order,
                    revision,
                    article: format!("article-{}", revision % 97),
                    cents: 1999,
                },
            })
            .collect()
    }

    fn voucher(&self, revision: i64) -> OrderEvent {
        OrderEvent::VoucherRedeemed { order_id: self.order, revision: revision + 1 }
    }
}
