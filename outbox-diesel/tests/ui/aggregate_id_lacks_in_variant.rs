use outbox_diesel::OutboxEvent;
use serde::Serialize;

#[derive(Serialize, OutboxEvent)]
#[outbox(aggregate = "order", aggregate_id = "order_id")]
enum OrderEvent {
    Created { order_id: i64 },
    Paid { id: i64 },
}

fn main() {}
