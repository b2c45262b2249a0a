use outbox_diesel::OutboxEvent;
use serde::Serialize;

#[derive(Serialize, OutboxEvent)]
#[outbox(aggregate = "order", agregate_id = "id", aggregate_id = "id")]
struct OrderCreated {
    id: i64,
}

fn main() {}
