//! Entries of a stream, as Redis answers them.

use std::fmt;
use std::str::FromStr;

use redis::Value;

/// The id of an entry: its place in its stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryId {
    /// Milliseconds since 1970, by the clock of Redis.
    pub ms: u64,
    /// Counts within the millisecond.
    pub seq: u64,
}

impl EntryId {
    /// Below every entry.
    pub(super) const ZERO: Self = Self { ms: 0, seq: 0 };
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.ms, self.seq)
    }
}

impl FromStr for EntryId {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        let (ms, seq) = text.split_once('-').ok_or(Unreadable)?;
        Ok(Self {
            ms: ms.parse().map_err(|_| Unreadable)?,
            seq: seq.parse().map_err(|_| Unreadable)?,
        })
    }
}

/// Redis answered something of another shape than it documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the answer of redis has an unknown shape")]
pub struct Unreadable;

/// Names and values, in order.
pub(super) type Fields = Vec<(Vec<u8>, Vec<u8>)>;

/// Per stream, by its number, what was read.
pub(super) type Page = Vec<(usize, Vec<Entry>)>;

/// Streams' names, and what was read of each.
type Streams = Vec<(Vec<u8>, Vec<Entry>)>;

/// An entry with its fields in order.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) id: EntryId,
    /// `None`: it is pending, but was deleted from the stream.
    pub(super) fields: Option<Fields>,
    /// How often it was delivered, this time included.
    pub(super) deliveries: u32,
}

impl fmt::Debug for Entry {
    /// Without payloads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Reads the answer of `XREADGROUP`: per stream its name and entries.
pub(super) fn streams(answer: Value) -> Result<Streams, Unreadable> {
    match answer {
        Value::Nil => Ok(Vec::new()),
        Value::Map(streams) => streams
            .into_iter()
            .map(|(name, entries)| Ok((bytes(name)?, self::entries(entries)?)))
            .collect(),
        Value::Array(streams) => streams
            .into_iter()
            .map(|stream| {
                let [name, entries] = array(stream)?;
                Ok((bytes(name)?, self::entries(entries)?))
            })
            .collect(),
        _ => Err(Unreadable),
    }
}

/// Reads the answer of `XAUTOCLAIM`: where to go on, and what was claimed.
pub(super) fn claimed(answer: Value) -> Result<(EntryId, Vec<Entry>), Unreadable> {
    let Value::Array(parts) = answer else { return Err(Unreadable) };
    let mut parts = parts.into_iter();
    let next = text(parts.next().ok_or(Unreadable)?)?.parse()?;
    Ok((next, entries(parts.next().ok_or(Unreadable)?)?))
}

/// Reads the answer of `XPENDING` with a range: ids and how often each was delivered.
pub(super) fn pending(answer: Value) -> Result<Vec<(EntryId, u32)>, Unreadable> {
    let Value::Array(rows) = answer else { return Err(Unreadable) };
    rows.into_iter()
        .map(|row| {
            let [id, _consumer, _idle, Value::Int(deliveries)] = array(row)? else {
                return Err(Unreadable);
            };
            Ok((text(id)?.parse()?, u32::try_from(deliveries).unwrap_or(u32::MAX)))
        })
        .collect()
}

fn entries(answer: Value) -> Result<Vec<Entry>, Unreadable> {
    let Value::Array(entries) = answer else { return Err(Unreadable) };
    entries
        .into_iter()
        // Redis 6.2 answers nil for a claimed entry that was deleted; its id is not told.
        .filter(|entry| *entry != Value::Nil)
        .map(|entry| {
            let [id, fields] = array(entry)?;
            Ok(Entry { id: text(id)?.parse()?, fields: self::fields(fields)?, deliveries: 1 })
        })
        .collect()
}

fn fields(answer: Value) -> Result<Option<Fields>, Unreadable> {
    let flat = match answer {
        Value::Nil => return Ok(None),
        Value::Array(flat) => flat,
        Value::Map(pairs) => pairs.into_iter().flat_map(|(name, value)| [name, value]).collect(),
        _ => return Err(Unreadable),
    };
    let mut flat = flat.into_iter();
    let mut fields = Vec::with_capacity(flat.len() / 2);
    while let Some(name) = flat.next() {
        fields.push((bytes(name)?, bytes(flat.next().ok_or(Unreadable)?)?));
    }
    Ok(Some(fields))
}

fn array<const N: usize>(value: Value) -> Result<[Value; N], Unreadable> {
    match value {
        Value::Array(values) => values.try_into().map_err(|_| Unreadable),
        _ => Err(Unreadable),
    }
}

fn bytes(value: Value) -> Result<Vec<u8>, Unreadable> {
    match value {
        Value::BulkString(bytes) => Ok(bytes),
        Value::SimpleString(text) => Ok(text.into_bytes()),
        _ => Err(Unreadable),
    }
}

fn text(value: Value) -> Result<String, Unreadable> {
    String::from_utf8(bytes(value)?).map_err(|_| Unreadable)
}
