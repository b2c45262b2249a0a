use outbox_diesel::OutboxEvent;
use serde::Serialize;

#[derive(Serialize, OutboxEvent)]
#[outbox(aggregate = "order", aggregate_id = "0", payload_limit = LIMIT)]
struct OrderCreated(i64);

const LIMIT: u64 = 4096;

fn main() {}
