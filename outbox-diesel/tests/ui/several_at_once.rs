use outbox_diesel::OutboxEvent;
use serde::Serialize;

#[derive(Serialize, OutboxEvent)]
#[outbox(agregate = "order", topic = orders, version = "two")]
struct OrderCreated {
    #[outbox(agregate_id, headers)]
    id: i64,
    #[outbox(dedupe_key)]
    request: i64,
}

fn emit(event: &impl OutboxEvent) {
    let _ = event.topic();
}

fn main() {
    emit(&OrderCreated { id: 1, request: 2 });
}
