use outbox_diesel::OutboxEvent;
use serde::Serialize;

#[derive(Serialize, OutboxEvent)]
#[outbox(aggregate = "order", event_type = "order.paid", aggregate_id = "0")]
enum OrderEvent {
    Paid(i64),
}

fn main() {}
