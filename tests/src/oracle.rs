//! The oracle: compares what committed with what arrived.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use diesel::sql_types::{BigInt, Text, Uuid as SqlUuid};
use diesel::{PgConnection, RunQueryDsl as _, dsl};
use outbox_diesel::publish::Recorded;
use redis::AsyncCommands as _;
use redis::aio::MultiplexedConnection;
use redis::streams::StreamRangeReply;
use uuid::Uuid;

/// The aggregate type of what [`Writers`](crate::Writers) change.
pub const AGGREGATE_TYPE: &str = "account";

/// When each event's transaction was seen to commit. What a lost connection hid is not in it.
pub type Commits = HashMap<Uuid, SystemTime>;

/// What the database says was committed.
#[derive(Debug, Default)]
pub struct Committed {
    /// Aggregate id and version of each event.
    events: HashMap<Uuid, (String, i64)>,
    /// How far each aggregate has come.
    versions: BTreeMap<String, i64>,
}

impl Committed {
    /// Reads the log and the ledger of the writers.
    #[must_use]
    pub fn read(conn: &mut PgConnection) -> Self {
        Self::select(conn, "SELECT id, aggregate_id, (payload ->> 'v')::bigint FROM outbox.events")
    }

    /// Reads what the writers themselves wrote down, in the same transactions: for logs that were
    /// emptied meanwhile.
    #[must_use]
    pub fn in_history(conn: &mut PgConnection) -> Self {
        Self::select(conn, "SELECT id, aggregate::text, version FROM history")
    }

    fn select(conn: &mut PgConnection, events: &str) -> Self {
        let events: Vec<(Uuid, String, i64)> =
            dsl::sql::<(SqlUuid, Text, BigInt)>(events).load(conn).expect("reads the events");
        let versions: Vec<(String, i64)> =
            dsl::sql::<(Text, BigInt)>("SELECT id::text, version FROM ledger")
                .load(conn)
                .expect("reads the ledger");
        let events = events.into_iter().map(|(id, aggregate, v)| (id, (aggregate, v))).collect();
        Self { events, versions: versions.into_iter().collect() }
    }

    /// How many events.
    #[must_use]
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether nothing was committed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }
}

/// An event at the broker.
#[derive(Debug, Clone)]
struct Arrival {
    id: Uuid,
    aggregate: String,
    version: i64,
    /// Arrivals of one lane are in exact order.
    lane: usize,
    /// When: comparable between lanes, perhaps coarsely.
    at: u64,
}

/// What the broker has, lane by lane in order.
#[derive(Debug, Clone, Default)]
pub struct Arrivals(Vec<Arrival>);

impl Arrivals {
    /// All entries of these streams. Between streams, order is told by the millisecond of an entry.
    pub async fn in_streams(conn: &mut MultiplexedConnection, streams: &[String]) -> Self {
        let mut arrivals = Vec::new();
        for (lane, stream) in streams.iter().enumerate() {
            let mut from = "-".to_owned();
            loop {
                let page: StreamRangeReply = conn
                    .xrange_count(stream, &from, "+", 500)
                    .await
                    .unwrap_or_else(|error| panic!("reads {stream}: {error}"));
                let Some(last) = page.ids.last() else { break };
                from = format!("({}", last.id);
                for entry in &page.ids {
                    let text = |field| entry.get::<String>(field).expect("a field of every entry");
                    let at = entry.id.split('-').next().and_then(|ms| ms.parse().ok());
                    arrivals.push(Arrival {
                        id: text("event_id").parse().expect("an id"),
                        aggregate: text("aggregate_id"),
                        version: version(&text("payload")),
                        lane,
                        at: at.expect("an entry's id begins with milliseconds"),
                    });
                }
            }
        }
        Self(arrivals)
    }

    /// What a recording publisher has of one subscription, in order across its topics.
    #[must_use]
    pub fn recorded(delivered: &[Recorded], subscription: &str) -> Self {
        let own = delivered.iter().filter(|recorded| recorded.subscription == subscription);
        let arrivals = own.zip(0..).map(|(recorded, at)| Arrival {
            id: recorded.message.id(),
            aggregate: recorded.message.aggregate_id().to_owned(),
            version: version(recorded.message.payload()),
            lane: 0,
            at,
        });
        Self(arrivals.collect())
    }

    /// How long after its commit each event first arrived, in ascending order. Only for streams of a
    /// Redis on this machine: it must have the writers' clock.
    #[must_use]
    pub fn delays(&self, commits: &Commits) -> Vec<Duration> {
        let mut seen = HashSet::new();
        let firsts = self.0.iter().filter(|arrival| seen.insert(arrival.id));
        let mut delays: Vec<Duration> = firsts
            .filter_map(|arrival| {
                let arrived = UNIX_EPOCH + Duration::from_millis(arrival.at);
                // Some arrive before their writer hears of the commit.
                Some(arrived.duration_since(*commits.get(&arrival.id)?).unwrap_or_default())
            })
            .collect();
        delays.sort_unstable();
        delays
    }

    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether nothing arrived.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn version(payload: &str) -> i64 {
    let payload: serde_json::Value = serde_json::from_str(payload).expect("a payload is JSON");
    payload["v"].as_i64().expect("a payload holds a version")
}

/// What the oracle says. All is well if [`is_clean`](Self::is_clean).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Events in the log.
    pub committed: usize,
    /// Entries at the broker.
    pub arrived: usize,
    /// Committed, not arrived.
    pub lost: usize,
    /// Arrived, not committed.
    pub phantom: usize,
    /// Arrived again.
    pub duplicated: usize,
    /// Arrived before an earlier event of its aggregate.
    pub reordered: usize,
    /// Aggregates of which the log does not hold every version once: the emit is at fault.
    pub gaps: usize,
    examples: Vec<String>,
}

impl Verdict {
    /// Compares.
    #[must_use]
    pub fn on(committed: &Committed, arrivals: &Arrivals) -> Self {
        let mut verdict =
            Self { committed: committed.events.len(), arrived: arrivals.len(), ..Self::default() };
        let mut seen = HashSet::new();
        let mut firsts: HashMap<&str, Vec<&Arrival>> = HashMap::new();
        for arrival in &arrivals.0 {
            let is_first = seen.insert(arrival.id);
            if !committed.events.contains_key(&arrival.id) {
                verdict.phantom += 1;
                verdict.example("phantom", &arrival.aggregate, arrival.version);
            } else if is_first {
                firsts.entry(&arrival.aggregate).or_default().push(arrival);
            } else {
                verdict.duplicated += 1;
                verdict.example("duplicated", &arrival.aggregate, arrival.version);
            }
        }
        for (id, (aggregate, version)) in &committed.events {
            if !seen.contains(id) {
                verdict.lost += 1;
                verdict.example("lost", aggregate, *version);
            }
        }
        for arrivals in firsts.values() {
            verdict.count_reordered(arrivals);
        }
        verdict.count_gaps(committed);
        verdict
    }

    fn count_reordered(&mut self, arrivals: &[&Arrival]) {
        let mut latest: HashMap<usize, i64> = HashMap::new();
        for arrival in arrivals {
            let latest = latest.entry(arrival.lane).or_insert(0);
            if arrival.version < *latest {
                self.reordered += 1;
                self.example("reordered", &arrival.aggregate, arrival.version);
            }
            *latest = arrival.version.max(*latest);
        }
        let mut by_version = arrivals.to_vec();
        by_version.sort_by_key(|arrival| arrival.version);
        for pair in by_version.windows(2) {
            if pair[1].lane != pair[0].lane && pair[1].at < pair[0].at {
                self.reordered += 1;
                self.example("reordered between streams", &pair[1].aggregate, pair[1].version);
            }
        }
    }

    fn count_gaps(&mut self, committed: &Committed) {
        let mut versions: HashMap<&str, Vec<i64>> = HashMap::new();
        for (aggregate, version) in committed.events.values() {
            versions.entry(aggregate).or_default().push(*version);
        }
        for (aggregate, reached) in &committed.versions {
            let mut emitted = versions.remove(aggregate.as_str()).unwrap_or_default();
            emitted.sort_unstable();
            if !emitted.iter().copied().eq(1..=*reached) {
                self.gaps += 1;
                self.example("gap in the log", aggregate, *reached);
            }
        }
    }

    fn example(&mut self, what: &str, aggregate: &str, version: i64) {
        if self.examples.len() < 10 {
            self.examples.push(format!("{what}: {aggregate} v{version}"));
        }
    }

    /// The same for a broker that tells no repeats: they are no fault.
    #[must_use]
    pub fn at_least_once(&self) -> Self {
        Self { duplicated: 0, ..self.clone() }
    }

    /// Nothing lost, phantom, duplicated, reordered or missing.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        (self.lost, self.phantom, self.duplicated, self.reordered, self.gaps) == (0, 0, 0, 0, 0)
    }

    /// Panics unless it is clean and something was committed at all.
    #[track_caller]
    pub fn assert_clean(&self, seed: u64) {
        assert!(self.is_clean() && self.committed > 0, "OUTBOX_SEED={seed}: {self}");
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { committed, arrived, lost, phantom, duplicated, reordered, gaps, examples } =
            self;
        write!(
            f,
            "{committed} committed, {arrived} arrived, {lost} lost, {phantom} phantom, {duplicated} duplicated, {reordered} reordered, {gaps} gaps"
        )?;
        for example in examples {
            write!(f, "; {example}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrival(id: u128, version: i64, lane: usize, at: u64) -> Arrival {
        Arrival { id: Uuid::from_u128(id), aggregate: "1".to_owned(), version, lane, at }
    }

    fn verdict(arrivals: Vec<Arrival>) -> Verdict {
        let events =
            (1..=3).zip(1..).map(|(id, version)| (Uuid::from_u128(id), ("1".to_owned(), version)));
        let versions = BTreeMap::from([("1".to_owned(), 3)]);
        Verdict::on(&Committed { events: events.collect(), versions }, &Arrivals(arrivals))
    }

    #[test]
    fn the_oracle_sees_every_kind_of_fault() {
        let all = [arrival(1, 1, 0, 1), arrival(2, 2, 0, 1), arrival(3, 3, 1, 1)];
        assert!(verdict(all.to_vec()).is_clean());
        assert_eq!(verdict(all[..2].to_vec()).lost, 1);
        assert_eq!(verdict([&all[..], &all[..1]].concat()).duplicated, 1);
        assert_eq!(verdict([&all[..], &[arrival(9, 4, 0, 2)]].concat()).phantom, 1);
        let swapped = vec![all[1].clone(), all[0].clone(), all[2].clone()];
        assert_eq!(verdict(swapped).reordered, 1);
        let across = vec![arrival(1, 1, 0, 5), arrival(2, 2, 0, 5), arrival(3, 3, 1, 4)];
        assert_eq!(verdict(across).reordered, 1);
    }

    #[test]
    fn the_oracle_sees_a_version_that_emitted_nothing() {
        let versions = BTreeMap::from([("1".to_owned(), 1)]);
        let committed = Committed { events: HashMap::new(), versions };
        assert_eq!(Verdict::on(&committed, &Arrivals::default()).gaps, 1);
    }
}
