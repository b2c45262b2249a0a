use outbox_diesel::OutboxEvent;
use serde::Serialize;

#[derive(Serialize, OutboxEvent)]
enum OrderEvent {
    Created {
        #[outbox(aggregate_id)]
        id: i64,
    },
}

fn main() {}
