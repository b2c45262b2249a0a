use outbox_diesel::OutboxEvent;

#[derive(OutboxEvent)]
#[outbox(aggregate = "order")]
union Either {
    id: i64,
    number: u32,
}

fn main() {}
