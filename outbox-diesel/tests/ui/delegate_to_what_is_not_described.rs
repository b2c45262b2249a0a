use outbox_diesel::OutboxEvent;
use serde::Serialize;

#[derive(Serialize, OutboxEvent)]
enum Event {
    #[outbox(delegate)]
    Order(OrderCreated),
}

#[derive(Serialize)]
struct OrderCreated;

impl OutboxEvent for OrderCreated {
    fn aggregate_type(&self) -> &str {
        "order"
    }
    fn aggregate_id(&self) -> Result<std::borrow::Cow<'_, str>, outbox_diesel::MissingAggregateId> {
        Ok("1".into())
    }
    fn event_type(&self) -> &str {
        "order.created"
    }
    fn write_payload(&self, _: &mut Vec<u8>) -> Result<(), serde_json::Error> {
        Ok(())
    }
}

fn main() {}
