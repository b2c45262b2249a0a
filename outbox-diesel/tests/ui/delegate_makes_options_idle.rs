use outbox_diesel::OutboxEvent;
use serde::Serialize;

#[derive(Serialize, OutboxEvent)]
#[outbox(topic = "orders", aggregate_id = "0")]
enum Event {
    #[outbox(delegate)]
    Order(OrderCreated),
}

#[derive(Serialize, OutboxEvent)]
#[outbox(aggregate = "order", aggregate_id = "0")]
struct OrderCreated(i64);

fn main() {}
