use outbox_diesel::OutboxEvent;
use serde::Serialize;

#[derive(Serialize, OutboxEvent)]
#[outbox(aggregate = "order", header("tenant" = 1), header("tenant" = 2))]
struct OrderCreated {
    #[outbox(aggregate_id)]
    id: i64,
    #[outbox(header)]
    tenant: i64,
}

fn main() {}
