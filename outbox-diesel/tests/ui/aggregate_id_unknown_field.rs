use outbox_diesel::OutboxEvent;
use serde::Serialize;

#[derive(Serialize, OutboxEvent)]
#[outbox(aggregate = "order", aggregate_id("tenant", "order"))]
struct OrderCreated {
    tenant: i64,
    order_id: i64,
}

fn main() {}
