use outbox_diesel::OutboxEvent;
use serde::Serialize;

#[derive(Serialize, OutboxEvent)]
#[outbox(aggregate = "health", aggregate_id = "ping")]
struct Ping;

fn main() {}
