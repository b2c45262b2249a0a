use outbox_diesel::OutboxEvent;
use serde::Serialize;

#[derive(Serialize, OutboxEvent)]
#[outbox(aggregate = "order", aggregate_id = "0")]
enum OrderEvent {
    #[outbox(aggregate = "payment")]
    Paid(i64),
}

fn main() {}
