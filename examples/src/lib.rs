//! What the services of the examples agree on: their events. In a company of your own this is a
//! small crate that both depend on; it needs no database and no broker
//! (`outbox-diesel` with `default-features = false`).

use outbox_diesel::OutboxEvent;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A customer has ordered something. Its type is `order.placed`, its stream `orders`.
#[derive(Debug, Clone, Serialize, Deserialize, OutboxEvent)]
#[outbox(aggregate = "order", topic = "orders")]
pub struct OrderPlaced {
    /// The order.
    #[outbox(aggregate_id)]
    pub id: Uuid,
    /// Who is to pay.
    pub customer: String,
    /// How much.
    pub cents: i64,
}
