use outbox_diesel::OutboxEvent;
use serde::Serialize;

#[derive(Serialize, OutboxEvent)]
#[outbox(aggregate = "order", aggregate_id = "0", serialize_writers = true)]
struct OrderCreated(i64);

fn main() {}
