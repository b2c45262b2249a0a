use outbox_diesel::OutboxEvent;
use serde::Serialize;

#[derive(Serialize, OutboxEvent)]
#[outbox(aggregate = "order", aggregate_id = "0", version = 2, upcast(1 = OrderCreatedV1))]
struct OrderCreated(i64);

#[derive(serde::Deserialize)]
struct OrderCreatedV1(i32);

fn main() {}
