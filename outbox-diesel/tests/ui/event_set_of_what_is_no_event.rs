use outbox_diesel::outbox_events;

struct OrderCreated;

outbox_events! { OrderCreated }

fn main() {}
