use outbox_diesel::{OutboxEvent, outbox_events};
use serde::Serialize;

#[derive(Serialize, OutboxEvent)]
#[outbox(aggregate = "order", aggregate_id = "0")]
enum OrderEvent {
    Created(i64),
    #[outbox(version = 12)]
    Paid(i64),
}

#[derive(Serialize, OutboxEvent)]
#[outbox(aggregate = "order", aggregate_id = "0", version = 12)]
struct OrderPaid(i64);

outbox_events! {
    enum ShopEvent {
        OrderEvent,
        OrderPaid,
    }
}

fn main() {}
