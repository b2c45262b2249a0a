use outbox_diesel::OutboxEvent;
use serde::Serialize;

#[derive(Serialize, OutboxEvent)]
enum Event {
    #[outbox(delegate, topic = "orders")]
    Order(#[outbox(header = "id")] OrderCreated),
}

#[derive(Serialize, OutboxEvent)]
#[outbox(aggregate = "order", aggregate_id = "0")]
struct OrderCreated(i64);

fn main() {}
