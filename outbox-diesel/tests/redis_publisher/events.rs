//! Events and stamps to publish.

use chrono::DateTime;
use outbox_diesel::message::{Chunk, Fields, Message, SHARDS};
use outbox_diesel::publish::{
    Batch, Contact, Publisher, Receipt, Repeat, Stamp, Unavailable, Verdict,
};
use uuid::Uuid;

#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) tick: i64,
    pub(crate) seq: i64,
    pub(crate) shard: u8,
    pub(crate) topic: String,
    pub(crate) aggregate: String,
    pub(crate) payload: String,
    pub(crate) headers: String,
    pub(crate) dedup_key: Option<String>,
}

/// An event of shard 0 and tick 10 whose id is its seq.
pub(crate) fn event(seq: i64) -> Event {
    Event {
        tick: 10,
        seq,
        shard: 0,
        topic: "orders".to_owned(),
        aggregate: "a".to_owned(),
        payload: format!("{{\"n\":{seq}}}"),
        headers: "{}".to_owned(),
        dedup_key: None,
    }
}

pub(crate) fn events(seqs: impl IntoIterator<Item = i64>) -> Vec<Event> {
    seqs.into_iter().map(event).collect()
}

impl Event {
    pub(crate) fn tick(self, tick: i64) -> Self {
        Self { tick, ..self }
    }

    pub(crate) fn shard(self, shard: u8) -> Self {
        Self { shard, ..self }
    }

    pub(crate) fn topic(self, topic: &str) -> Self {
        Self { topic: topic.to_owned(), ..self }
    }

    pub(crate) fn aggregate(self, aggregate: &str) -> Self {
        Self { aggregate: aggregate.to_owned(), ..self }
    }

    pub(crate) fn payload(self, payload: impl Into<String>) -> Self {
        Self { payload: payload.into(), ..self }
    }
}

pub(crate) fn id(seq: i64) -> Uuid {
    Uuid::from_u128(u128::try_from(seq).expect("seq is positive"))
}

/// Epoch 1 everywhere, generation 1, mark 77.
pub(crate) fn stamp() -> Stamp {
    Stamp {
        source: Uuid::from_u128(1),
        subscription: "default".to_owned(),
        generation: 1,
        epochs: [1; SHARDS],
        repeat: Repeat::Position { mark: 77 },
    }
}

pub(crate) fn epoch(epoch: i64) -> Stamp {
    Stamp { epochs: [epoch; SHARDS], ..stamp() }
}

pub(crate) fn chunk(events: &[Event]) -> Chunk {
    let mut chunk = Chunk::default();
    for event in events {
        chunk.push(Fields {
            tick: event.tick,
            seq: event.seq,
            shard: event.shard,
            id: id(event.seq),
            topic: &event.topic,
            aggregate_type: "order",
            aggregate_id: &event.aggregate,
            event_type: "order.created",
            event_version: 1,
            dedup_key: event.dedup_key.as_deref(),
            payload: &event.payload,
            headers: &event.headers,
            created_at: DateTime::from_timestamp_micros(1_700_000_000_123_456).expect("a time"),
        });
    }
    chunk
}

pub(crate) async fn contact<P: Publisher>(
    publisher: &mut P,
    stamp: &Stamp,
    events: &[Event],
) -> Result<Vec<Contact>, Unavailable> {
    let chunk = chunk(events);
    let messages: Vec<Message<'_>> = chunk.messages().collect();
    publisher.contact(&Batch::new(stamp, &messages)).await
}

pub(crate) async fn publish<P: Publisher>(
    publisher: &mut P,
    stamp: &Stamp,
    events: &[Event],
) -> Receipt {
    let chunk = chunk(events);
    let messages: Vec<Message<'_>> = chunk.messages().collect();
    publisher.publish(&Batch::new(stamp, &messages)).await
}

/// First contact, then publish: what the relay does.
pub(crate) async fn send<P: Publisher>(
    publisher: &mut P,
    stamp: &Stamp,
    events: &[Event],
) -> Receipt {
    contact(publisher, stamp, events).await.expect("contact");
    publish(publisher, stamp, events).await
}

/// One letter per event: delivered, rejected, unattempted.
pub(crate) fn verdicts(receipt: &Receipt) -> String {
    let letter = |verdict: &Verdict| match verdict {
        Verdict::Delivered => 'd',
        Verdict::Rejected(_) => 'r',
        Verdict::Unattempted => 'u',
    };
    receipt.verdicts().iter().map(letter).collect()
}
