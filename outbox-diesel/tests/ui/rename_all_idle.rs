use outbox_diesel::OutboxEvent;
use serde::Serialize;

#[derive(Serialize, OutboxEvent)]
#[outbox(aggregate = "order", aggregate_id = "0", event_type = "made", rename_all = "lowercase")]
struct OrderCreated(i64);

fn main() {}
