use outbox_diesel::OutboxEvent;
use serde::Serialize;

#[derive(Serialize, OutboxEvent)]
#[outbox(aggregate = "order", aggregate_id = "0")]
enum OrderEvent {
    #[outbox(version = 0)]
    Created(i64),
    #[outbox(version = 32768)]
    Paid(i64),
    #[outbox(version = -1)]
    Shipped(i64),
}

fn main() {}
