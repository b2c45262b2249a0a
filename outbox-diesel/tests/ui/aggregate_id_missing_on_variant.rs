use outbox_diesel::OutboxEvent;
use serde::Serialize;

#[derive(Serialize, OutboxEvent)]
#[outbox(aggregate = "order")]
enum OrderEvent {
    Created {
        #[outbox(aggregate_id)]
        id: i64,
    },
    Paid {
        id: i64,
    },
}

fn main() {}
