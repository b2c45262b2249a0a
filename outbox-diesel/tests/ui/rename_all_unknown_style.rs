use outbox_diesel::OutboxEvent;
use serde::Serialize;

#[derive(Serialize, OutboxEvent)]
#[outbox(aggregate = "order", aggregate_id = "0", rename_all = "snakeCase")]
struct OrderCreated(i64);

#[derive(Serialize, OutboxEvent)]
#[outbox(aggregate = "order", aggregate_id = "0", rename_all = "title")]
struct OrderPaid(i64);

fn main() {}
