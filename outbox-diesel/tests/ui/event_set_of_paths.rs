use outbox_diesel::outbox_events;

outbox_events! { orders::OrderCreated, payments::Captured }

fn main() {}
