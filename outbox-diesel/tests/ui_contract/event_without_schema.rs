use outbox_diesel::{OutboxEvent, contract, outbox_events};

#[derive(serde::Serialize, OutboxEvent)]
#[outbox(aggregate = "order", aggregate_id = "0")]
struct OrderCreated(i64);

outbox_events! {
    enum ShopEvent {
        OrderCreated,
    }
}

fn main() {
    contract::assert_kept::<ShopEvent>("events.json");
}
