use outbox_diesel::OutboxEvent;
use serde::Serialize;

#[derive(Serialize, OutboxEvent)]
#[outbox(aggregate = "order", colour = "red")]
struct OrderCreated {
    #[outbox(aggregate_id)]
    id: i64,
}

fn main() {}
