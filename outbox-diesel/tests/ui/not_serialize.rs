use outbox_diesel::OutboxEvent;

#[derive(OutboxEvent)]
#[outbox(aggregate = "order")]
struct OrderCreated {
    #[outbox(aggregate_id)]
    id: i64,
}

fn main() {}
