use outbox_diesel::OutboxEvent;
use serde::Serialize;

#[derive(Serialize, OutboxEvent)]
#[outbox(aggregate = "order", dedup_key = self.id)]
struct OrderCreated {
    #[outbox(aggregate_id, dedup_key)]
    id: i64,
}

fn main() {}
