use outbox_diesel::OutboxEvent;
use serde::Serialize;

#[derive(Serialize, OutboxEvent)]
#[outbox(aggregate = "order", aggregate_id = "oder_id")]
struct OrderCreated {
    order_id: i64,
}

fn main() {}
