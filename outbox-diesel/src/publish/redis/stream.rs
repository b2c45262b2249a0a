//! Which stream an event goes to, and the keys that live in that stream's hash slot.

use std::fmt::Write as _;

use uuid::Uuid;

use crate::message::Message;

/// How events are spread over streams. The events of an aggregate within a topic stay in one
/// stream, whichever is chosen.
///
/// Changing it changes where the order of an aggregate continues: let the relay drain first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum StreamNaming {
    /// One stream per topic, named like it.
    #[default]
    PerTopic,
    /// One stream for everything. The `topic` field tells the topics apart.
    Single(String),
    /// Several streams per topic, named `<topic>:<n>`, `n` being the shard modulo `per_topic`. For
    /// topics that are too hot for one consumer or one cluster node.
    PerShard {
        /// Streams per topic, 1 to 16. More than 16 are as good as 16, and 0 is read as 1.
        per_topic: u8,
    },
}

impl StreamNaming {
    /// All streams that events of this topic may go to, without the prefix.
    ///
    /// ```
    /// use outbox_diesel::publish::redis::StreamNaming;
    ///
    /// assert_eq!(StreamNaming::PerTopic.names("orders"), ["orders"]);
    /// assert_eq!(StreamNaming::PerShard { per_topic: 2 }.names("orders"), ["orders:0", "orders:1"]);
    /// ```
    #[must_use]
    pub fn names(&self, topic: &str) -> Vec<String> {
        match self {
            Self::PerTopic => vec![topic.to_owned()],
            Self::Single(single) => vec![single.clone()],
            Self::PerShard { per_topic } => {
                (0..(*per_topic).clamp(1, 16)).map(|nth| format!("{topic}:{nth}")).collect()
            }
        }
    }

    /// Writes the name of the event's stream, without the prefix.
    pub(super) fn write_name(&self, name: &mut String, message: &Message<'_>) {
        match self {
            Self::PerTopic => name.push_str(message.topic()),
            Self::Single(single) => name.push_str(single),
            Self::PerShard { per_topic } => {
                let nth = message.shard() % (*per_topic).max(1);
                write!(name, "{}:{nth}", message.topic()).expect("a String takes any text");
            }
        }
    }

    /// Whether two events are sure to share a stream. Cheap: it spares most look-ups by name.
    pub(super) fn same_stream(&self, one: &Message<'_>, other: &Message<'_>) -> bool {
        match self {
            Self::PerTopic => one.topic() == other.topic(),
            Self::Single(_) => true,
            Self::PerShard { .. } => one.shard() == other.shard() && one.topic() == other.topic(),
        }
    }
}

/// The key of a stream's fence.
pub(super) fn fence_key(stream: &str) -> String {
    beside(stream, "outbox:fence")
}

/// What the keys of a stream's retried events begin with.
pub(super) fn retry_prefix(stream: &str, source: Uuid, subscription: &str) -> String {
    format!("{}:{source}:{subscription}", beside(stream, "outbox:parked"))
}

/// A key in the stream's hash slot. No two streams share one, whatever braces they contain: the
/// three shapes differ in what follows the kind, or in how many braces close.
fn beside(stream: &str, kind: &str) -> String {
    if hash_tag(stream).is_some() {
        // The kind has no braces, so the stream's own tag stays the first.
        format!("{kind}::{stream}")
    } else if stream.is_empty() || !stream.contains('}') {
        format!("{kind}:{{{stream}}}")
    } else {
        // A tag can't contain `}`: take the first number that falls into the same slot.
        let wanted = slot(stream);
        let tag = (0..=u32::MAX)
            .map(|number| number.to_string())
            .find(|tag| crc16(tag.as_bytes()) % SLOTS == wanted)
            .expect("crc16 reaches every slot");
        format!("{kind}:{{{tag}}}:{stream}")
    }
}

const SLOTS: u16 = 16_384;

/// The cluster slot of a key: <https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/#hash-tags>
fn slot(key: &str) -> u16 {
    crc16(hash_tag(key).unwrap_or(key).as_bytes()) % SLOTS
}

/// The part of the key that decides its slot, if not all of it does.
fn hash_tag(key: &str) -> Option<&str> {
    let (_, rest) = key.split_once('{')?;
    let (tag, _) = rest.split_once('}')?;
    (!tag.is_empty()).then_some(tag)
}

/// CRC-16/XMODEM, as the cluster specification says.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const AWKWARD: [&str; 11] =
        ["orders", "a:b", "{x}", "x", "a{b}c", "{}x", "x}", "}{", "a}b{c}d", "{{x}}", ""];

    #[test]
    fn crc16_is_the_one_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        assert_eq!(slot("user{1000}.following"), slot("user{1000}.followers"));
    }

    #[test]
    fn a_fence_lies_in_the_slot_of_its_stream() {
        for stream in AWKWARD.into_iter().filter(|stream| !stream.is_empty()) {
            assert_eq!(slot(&fence_key(stream)), slot(stream), "{stream}");
        }
    }

    #[test]
    fn a_tag_of_ones_own_is_kept() {
        assert_eq!(fence_key("{app}:orders"), "outbox:fence::{app}:orders");
        assert_eq!(fence_key("orders"), "outbox:fence:{orders}");
    }

    #[test]
    fn no_two_streams_share_a_fence() {
        let keys: std::collections::BTreeSet<_> = AWKWARD.into_iter().map(fence_key).collect();
        assert_eq!(keys.len(), AWKWARD.len());
    }
}
