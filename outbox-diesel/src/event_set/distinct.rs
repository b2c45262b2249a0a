//! The check, at compile time, that no event is declared twice.
//!
//! `track_caller`, so that the compiler shows the list and nothing of this file.

use crate::describe::{Described, EventDescription};

type Members = &'static [(&'static str, &'static [Described])];
type Slot = Option<(&'static EventDescription, &'static str)>;

/// How many slots the check needs: a hash table that is at most half full.
#[doc(hidden)]
#[must_use]
pub const fn slots(members: Members) -> usize {
    let (mut all, mut index) = (0, 0);
    while index < members.len() {
        all += count(members[index].1);
        index += 1;
    }
    2 * all + 1
}

const fn count(events: &[Described]) -> usize {
    let (mut all, mut index) = (0, 0);
    while index < events.len() {
        all += match &events[index] {
            Described::Event(_) => 1,
            Described::Delegated { events, .. } => count(events),
        };
        index += 1;
    }
    all
}

/// Refuses an event type that is declared twice in one version.
#[doc(hidden)]
#[track_caller]
pub const fn distinct<const N: usize>(members: Members) {
    let mut table: [Slot; N] = [None; N];
    let mut index = 0;
    while index < members.len() {
        insert_all(&mut table, members[index].0, members[index].1);
        index += 1;
    }
}

#[track_caller]
const fn insert_all<const N: usize>(
    table: &mut [Slot; N],
    member: &'static str,
    events: &'static [Described],
) {
    let mut index = 0;
    while index < events.len() {
        match &events[index] {
            Described::Event(event) => insert(table, member, event),
            Described::Delegated { events, .. } => insert_all(table, member, events),
        }
        index += 1;
    }
}

#[track_caller]
const fn insert<const N: usize>(
    table: &mut [Slot; N],
    member: &'static str,
    event: &'static EventDescription,
) {
    let mut at = hash(event) % N;
    while let Some((known, owner)) = table[at] {
        if known.event_version == event.event_version
            && equal(known.event_type.as_bytes(), event.event_type.as_bytes())
        {
            refuse(event, owner, member);
        }
        at = (at + 1) % N;
    }
    table[at] = Some((event, member));
}

/// FNV-1a.
const fn hash(event: &EventDescription) -> usize {
    let bytes = event.event_type.as_bytes();
    let mut hash = 0x811c_9dc5_u32 ^ event.event_version.unsigned_abs() as u32;
    let mut index = 0;
    while index < bytes.len() {
        hash = (hash ^ bytes[index] as u32).wrapping_mul(0x0100_0193);
        index += 1;
    }
    hash as usize
}

const fn equal(left: &[u8], right: &[u8]) -> bool {
    if left.len() != right.len() {
        return false;
    }
    let mut index = 0;
    while index < left.len() {
        if left[index] != right[index] {
            return false;
        }
        index += 1;
    }
    true
}

#[track_caller]
const fn refuse(event: &EventDescription, first: &str, second: &str) -> ! {
    let text = Text::new()
        .push("event type `")
        .push(event.event_type)
        .push("` version ")
        .push_number(event.event_version)
        .push(" is declared by `")
        .push(first)
        .push("` and again by `")
        .push(second)
        .push("`; give one of them another `#[outbox(event_type = \"...\")]` or `#[outbox(version = ...)]`");
    panic!("{}", text.as_str())
}

/// A text that can be put together at compile time.
struct Text {
    bytes: [u8; 1024],
    len: usize,
}

impl Text {
    const fn new() -> Self {
        Self { bytes: [0; 1024], len: 0 }
    }

    const fn push(mut self, text: &str) -> Self {
        let text = text.as_bytes();
        let mut index = 0;
        while index < text.len() && self.len < self.bytes.len() {
            self.bytes[self.len] = text[index];
            self.len += 1;
            index += 1;
        }
        self
    }

    const fn push_number(mut self, number: i16) -> Self {
        if number >= 10 {
            self = self.push_number(number / 10);
        }
        let digit = [b'0' + (number.unsigned_abs() % 10) as u8];
        match std::str::from_utf8(&digit) {
            Ok(digit) => self.push(digit),
            Err(_) => self,
        }
    }

    const fn as_str(&self) -> &str {
        match std::str::from_utf8(self.bytes.split_at(self.len).0) {
            Ok(text) => text,
            Err(_) => "an event type is declared twice",
        }
    }
}
