use outbox_diesel::OutboxEvent;
use serde::Serialize;

#[derive(Serialize, OutboxEvent)]
#[outbox(aggregate = "order")]
struct OrderCreated(#[outbox(aggregate_id, header)] i64);

fn main() {}
