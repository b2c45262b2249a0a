use outbox_diesel::OutboxEvent;
use serde::Serialize;

#[derive(Serialize, OutboxEvent)]
enum Event {
    #[outbox(delegate)]
    Order(i64),
}

fn main() {}
