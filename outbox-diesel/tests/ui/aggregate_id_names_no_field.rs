use outbox_diesel::OutboxEvent;
use serde::Serialize;

#[derive(Serialize, OutboxEvent)]
#[outbox(aggregate = "order", aggregate_id())]
struct OrderCreated {
    id: i64,
}

fn main() {}
