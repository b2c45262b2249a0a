use outbox_diesel::OutboxEvent;
use serde::Serialize;

#[derive(Serialize, OutboxEvent)]
#[outbox(aggregate = "order", aggregate_id = "0")]
enum OrderEvent {
    #[outbox(payload_limit = "1 MiB")]
    Created(i64),
    #[outbox(payload_limit = 0)]
    Paid(i64),
    #[outbox(payload_limit = -1)]
    Shipped(i64),
}

fn main() {}
