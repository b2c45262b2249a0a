use outbox_diesel::OutboxEvent;
use serde::Serialize;

#[derive(Serialize, OutboxEvent)]
#[outbox(aggregate = "order", aggregate_id = "0")]
enum OrderEvent {
    #[outbox(rename_all = "lowercase")]
    Created(i64),
}

fn main() {}
