//! Packs the events of one script call into one argument: that halves what the script costs,
//! compared with an argument per field.
//!
//! Big-endian, as `fence.lua`, `publish.lua` and `retry.lua` unpack it:
//! ```text
//! u64 generation · u64 tick · u64 mark · u8 trim kind · u64 trim · u16 length, field prefix
//! u8 shards, per shard:  u8 shard · u64 epoch
//! u32 events, per event: u8 shard · u64 seq · 36 bytes id · u32 length, topic ·
//!     u32 length, aggregate type · u32 length, aggregate id · u32 length, event type ·
//!     u8 length, event version · u32 length, dedup key · u32 length, payload ·
//!     u32 length, headers · u8 length, created_at
//! ```

use std::io::Write as _;

use chrono::{DateTime, Datelike, SecondsFormat, Timelike, Utc};

use super::Trim;
use crate::message::{Message, SHARDS};
use crate::publish::{Batch, Repeat, Stamp};

/// Lua's numbers are doubles: from here on they skip integers.
const LIMIT: i64 = 1 << 53;

/// Refuses numbers that a script could not tell from their neighbours.
pub(super) fn check_stamp(stamp: &Stamp) -> Result<(), String> {
    check("generation", stamp.generation)?;
    if let Repeat::Position { mark } = stamp.repeat {
        check("mark", mark)?;
    }
    if u16::try_from(field_prefix(stamp).len()).is_err() {
        return Err(String::from("the subscription's name is longer than 64 KiB"));
    }
    stamp.epochs.iter().try_for_each(|epoch| check("epoch", *epoch))
}

pub(super) fn check_message(message: &Message<'_>) -> Result<(), String> {
    check("tick", message.tick())?;
    check("seq", message.seq())?;
    if usize::from(message.shard()) < SHARDS {
        Ok(())
    } else {
        Err(format!("shard {} is not below {SHARDS}", message.shard()))
    }
}

/// Refuses batches that a script could not take.
pub(super) fn check_batch(batch: &Batch<'_>) -> Result<(), String> {
    check_stamp(batch.stamp())?;
    batch.messages().iter().try_for_each(check_message)?;
    let by_position = matches!(batch.stamp().repeat, Repeat::Position { .. });
    if by_position && batch.messages().windows(2).any(|pair| pair[0].tick() != pair[1].tick()) {
        return Err(String::from("a batch by position spans several ticks"));
    }
    Ok(())
}

fn check(what: &str, number: i64) -> Result<(), String> {
    if (0..LIMIT).contains(&number) {
        Ok(())
    } else {
        Err(format!("{what} {number} is not between 0 and 2^53, which scripts hold exactly"))
    }
}

/// What the fence's fields of this source and subscription begin with.
pub(super) fn field_prefix(stamp: &Stamp) -> String {
    format!("{}:{}:", stamp.source, stamp.subscription)
}

/// Appends the part before the events. The numbers were checked.
pub(super) fn header(
    packed: &mut Vec<u8>,
    stamp: &Stamp,
    prefix: &str,
    tick: i64,
    trim: Option<Trim>,
    shards: u16,
    events: usize,
) {
    let (tick, mark) = match stamp.repeat {
        Repeat::Position { mark } => (tick, mark),
        Repeat::EventId => (0, 0),
    };
    let (kind, keep) = match trim {
        None => (0, 0),
        Some(Trim::MaxLen(entries)) => (1, entries),
        Some(Trim::MaxAge(age)) => (2, u64::try_from(age.as_millis()).unwrap_or(u64::MAX)),
    };
    for number in [stamp.generation, tick, mark] {
        packed.extend(number.to_be_bytes());
    }
    packed.push(kind);
    packed.extend(keep.min(LIMIT.unsigned_abs() - 1).to_be_bytes());
    let length = u16::try_from(prefix.len()).expect("the stamp was checked");
    packed.extend(length.to_be_bytes());
    packed.extend(prefix.as_bytes());
    packed.push(u8::try_from(shards.count_ones()).expect("there are 16 shards"));
    for (shard, epoch) in (0_u8..).zip(stamp.epochs) {
        if shards & (1 << shard) != 0 {
            packed.push(shard);
            packed.extend(epoch.to_be_bytes());
        }
    }
    packed.extend(u32::try_from(events).expect("a batch has a few thousand events").to_be_bytes());
}

/// Appends one event.
pub(super) fn event(packed: &mut Vec<u8>, message: &Message<'_>) {
    packed.push(message.shard());
    packed.extend(message.seq().to_be_bytes());
    let mut id = [0; 36];
    packed.extend(message.id().hyphenated().encode_lower(&mut id).as_bytes());
    text(packed, message.topic());
    text(packed, message.aggregate_type());
    text(packed, message.aggregate_id());
    text(packed, message.event_type());
    short(packed, |packed| {
        write!(packed, "{}", message.event_version()).expect("a Vec takes any bytes");
    });
    text(packed, message.dedup_key().unwrap_or_default());
    text(packed, message.payload());
    text(packed, message.headers());
    short(packed, |packed| time(packed, message.created_at()));
}

fn text(packed: &mut Vec<u8>, text: &str) {
    let length = u32::try_from(text.len()).expect("PostgreSQL bounds a row at 1 GiB");
    packed.extend(length.to_be_bytes());
    packed.extend(text.as_bytes());
}

/// A text of less than 256 bytes, its length written after it is known.
fn short(packed: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let at = packed.len();
    packed.push(0);
    write(packed);
    packed[at] = u8::try_from(packed.len() - at - 1).expect("numbers and times are short");
}

/// RFC 3339 with microseconds, in UTC. By hand: chrono would allocate a String per event.
pub(super) fn time(packed: &mut Vec<u8>, time: DateTime<Utc>) {
    let Some(year) = u32::try_from(time.year()).ok().filter(|year| *year < 10_000) else {
        packed.extend(time.to_rfc3339_opts(SecondsFormat::Micros, true).as_bytes());
        return;
    };
    digits(packed, year, 4);
    let micros = time.nanosecond() / 1_000 % 1_000_000;
    for (mark, number, width) in [
        (b'-', time.month(), 2),
        (b'-', time.day(), 2),
        (b'T', time.hour(), 2),
        (b':', time.minute(), 2),
        (b':', time.second(), 2),
        (b'.', micros, 6),
    ] {
        packed.push(mark);
        digits(packed, number, width);
    }
    packed.push(b'Z');
}

fn digits(packed: &mut Vec<u8>, mut number: u32, width: usize) {
    let at = packed.len();
    packed.resize(at + width, b'0');
    for digit in packed[at..].iter_mut().rev() {
        *digit = b'0' + u8::try_from(number % 10).expect("a digit is below 10");
        number /= 10;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_what_chrono_writes() {
        for (seconds, nanos) in [
            (0, 0),
            (1_700_000_000, 123_456_789),
            (951_782_400, 1_000),
            (-1, 999_999_999),
            (253_402_300_800, 5_000),
        ] {
            let moment = DateTime::from_timestamp(seconds, nanos).expect("a time");
            let mut packed = Vec::new();
            time(&mut packed, moment);
            let wanted = moment.to_rfc3339_opts(SecondsFormat::Micros, true);
            assert_eq!(String::from_utf8_lossy(&packed), wanted);
        }
    }
}
