use outbox_diesel::OutboxEvent;
use serde::Serialize;

#[derive(Serialize)]
struct OrderId(i64);

#[derive(Serialize, OutboxEvent)]
#[outbox(aggregate = "order")]
struct OrderCreated {
    #[outbox(aggregate_id)]
    id: OrderId,
    #[outbox(header)]
    parent: Option<OrderId>,
}

fn main() {}
