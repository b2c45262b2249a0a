use outbox_diesel::OutboxEvent;
use serde::Serialize;

#[derive(Serialize, OutboxEvent)]
#[outbox(aggregate = "order", aggregate_id = "0")]
enum OrderEvent {
    Created(i64),
    OrderCreated(i64),
    #[outbox(event_type = "order.created")]
    Placed(i64),
    #[outbox(version = 2)]
    Paid(i64),
}

fn main() {}
