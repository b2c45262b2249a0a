use outbox_diesel::OutboxEvent;
use serde::Serialize;

#[derive(Serialize, OutboxEvent)]
enum Event {
    #[outbox(delegate)]
    Order { order: i64 },
    #[outbox(delegate)]
    Nothing,
}

fn main() {}
