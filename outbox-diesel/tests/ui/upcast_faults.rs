use outbox_diesel::OutboxEvent;
use serde::Serialize;

#[derive(Serialize, OutboxEvent)]
#[outbox(aggregate = "order", aggregate_id = "0", upcast(1 = Old))]
struct OrderCreated(i64);

#[derive(Serialize, OutboxEvent)]
#[outbox(aggregate = "order", aggregate_id = "0", version = 3, upcast(1 = Old, 1 = Old))]
struct OrderPaid(i64);

#[derive(Serialize, OutboxEvent)]
#[outbox(aggregate = "order", aggregate_id = "0", version = 2, upcast(Old))]
struct OrderShipped(i64);

#[derive(Serialize, OutboxEvent)]
#[outbox(aggregate = "order", aggregate_id = "0", version = 2, upcast("1" = "Old"))]
struct OrderReturned(i64);

#[derive(Serialize, OutboxEvent)]
#[outbox(aggregate = "order", aggregate_id = "0", version = 2, upcast(1 = "Old"))]
struct OrderLost(i64);

#[derive(serde::Deserialize)]
struct Old(i64);

fn main() {}
