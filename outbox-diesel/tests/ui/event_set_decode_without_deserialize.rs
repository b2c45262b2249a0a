use outbox_diesel::{EventSet, OutboxEvent, outbox_events};
use serde::Serialize;

#[derive(Serialize, OutboxEvent)]
#[outbox(aggregate = "order", aggregate_id = "0")]
struct OrderCreated(i64);

outbox_events! { OrderCreated }

fn main() {
    let _ = Events::decode("order.created", 1, b"7");
}
