use outbox_diesel::OutboxEvent;
use serde::Serialize;

#[derive(Serialize, OutboxEvent)]
#[outbox(aggregate = "order", rename_all = "snake_case")]
struct OrderCreated {
    #[outbox(aggregate_id)]
    id: i64,
}

fn main() {}
