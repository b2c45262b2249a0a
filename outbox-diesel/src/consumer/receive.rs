//! Receive: what to do with an entry that was read.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use tracing::{debug, warn};

use super::ConsumerError;
use super::delivery::{Delivery, Malformed};
use super::entry::{Entry, EntryId};
use super::lanes::Item;
use super::options::Settings;
use super::route::{Handler, Routes, Unhandled};
use super::worker::Worker;

/// Types that are logged once each. Beyond, a producer makes them up, and nobody reads them all.
const LOGGED_TYPES: usize = 1000;

type Report<T> = Arc<dyn Fn(&T) + Send + Sync>;

/// Who is told of what no handler gets.
#[derive(Default)]
pub(super) struct Reports {
    pub(super) malformed: Option<Report<MalformedEntry>>,
    pub(super) unknown: Option<Report<UnknownEvent>>,
    logged: HashSet<(String, i16)>,
}

/// An event that has no handler.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnknownEvent {
    /// Where it was read.
    pub stream: Arc<str>,
    /// Its place in the stream.
    pub entry: EntryId,
    /// Its type.
    pub event_type: String,
    /// Its version.
    pub event_version: i16,
}

impl fmt::Display for UnknownEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stream, entry, event_type, event_version } = self;
        write!(
            f,
            "entry {entry} of stream {stream} has no handler: {event_type}, version {event_version}"
        )
    }
}

impl Reports {
    fn unknown(&mut self, event: &UnknownEvent, policy: Unhandled) {
        let kind = (event.event_type.clone(), event.event_version);
        if self.logged.len() < LOGGED_TYPES && self.logged.insert(kind) {
            warn!(?policy, "{event}; the next of this type are not logged");
        } else {
            debug!(?policy, "{event}");
        }
        if let Some(report) = &self.unknown {
            report(event);
        }
    }

    fn malformed(&self, entry: &MalformedEntry, policy: Unhandled) {
        warn!(?policy, "{entry}");
        if let Some(report) = &self.malformed {
            report(entry);
        }
    }
}

/// An entry that is no event, or not one that can be read.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MalformedEntry {
    /// Where it was read.
    pub stream: Arc<str>,
    /// Its place in the stream.
    pub entry: EntryId,
    /// What is wrong with it.
    pub problem: Malformed,
}

impl fmt::Display for MalformedEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "entry {} of stream {} is no event: {}", self.entry, self.stream, self.problem)
    }
}

pub(super) struct Receiver {
    routes: Routes,
    unknown: Unhandled,
    malformed: Unhandled,
    max_deliveries: u32,
    pub(super) reports: Reports,
}

impl Receiver {
    pub(super) fn new(routes: Routes, settings: &Settings) -> Self {
        Self {
            routes,
            unknown: settings.unknown,
            malformed: settings.malformed,
            max_deliveries: settings.max_deliveries,
            reports: Reports::default(),
        }
    }

    /// The handler of a delivery that was received.
    pub(super) fn handler(&self, delivery: &Delivery) -> Handler {
        Arc::clone(self.routes.find(delivery).expect("events without a handler get no lane"))
    }
}

impl Worker {
    /// Queues an entry for its handler, or settles one that has none.
    pub(super) fn receive(&mut self, number: usize, mut entry: Entry, redelivered: bool) {
        let place = (number, entry.id);
        if self.stop.is_some() || !self.lanes.hold(place) {
            return;
        }
        let stream = Arc::clone(&self.streams[number].name);
        let Some(fields) = entry.fields.take() else {
            warn!(%stream, entry = %entry.id, "an entry was deleted from its stream before it was handled");
            self.settling.acknowledge(place);
            return;
        };
        let (policy, error, fields, stop) = match Delivery::read(&stream, &entry, fields) {
            Ok(delivery) if delivery.attempt() > self.receiver.max_deliveries => {
                warn!(event_id = %delivery.event_id(), event_type = delivery.event_type(), topic = delivery.topic(), aggregate_id = delivery.aggregate_id(), attempt = delivery.attempt(), trace_id = delivery.trace_id(), "an event became a dead letter: its tries ended their process");
                let error = "its handler never came to an end: the process did".to_owned();
                let tries = delivery.attempt() - 1;
                self.settling.bury(place, error, tries, delivery.fields().to_vec());
                return;
            }
            Ok(delivery) if self.receiver.routes.find(&delivery).is_some() => {
                self.lanes.push(Item { place, delivery, redelivered });
                return;
            }
            Ok(delivery) => {
                let unknown = UnknownEvent {
                    stream,
                    entry: entry.id,
                    event_type: delivery.event_type().to_owned(),
                    event_version: delivery.event_version(),
                };
                self.receiver.reports.unknown(&unknown, self.receiver.unknown);
                let stop = ConsumerError::UnknownEvent(unknown);
                let fields = delivery.fields().to_vec();
                (self.receiver.unknown, stop.to_string(), fields, stop)
            }
            Err((problem, fields)) => {
                let malformed = MalformedEntry { stream, entry: entry.id, problem };
                self.receiver.reports.malformed(&malformed, self.receiver.malformed);
                let stop = ConsumerError::Malformed(malformed);
                (self.receiver.malformed, stop.to_string(), fields, stop)
            }
        };
        match policy {
            Unhandled::Skip => self.settling.acknowledge(place),
            Unhandled::DeadLetter => self.settling.bury(place, error, 0, fields),
            Unhandled::Stop => self.stop = Some(stop),
        }
    }
}
