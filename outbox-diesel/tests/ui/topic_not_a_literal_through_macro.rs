use outbox_diesel::OutboxEvent;
use serde::Serialize;

macro_rules! event {
    ($topic:expr) => {
        #[derive(Serialize, OutboxEvent)]
        #[outbox(aggregate = "order", topic = $topic, aggregate_id = "0")]
        struct OrderCreated(i64);
    };
}

event!(concat!("or", "ders"));

fn main() {}
