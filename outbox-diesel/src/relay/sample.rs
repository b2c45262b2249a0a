//! What the gauges tell about the database, looked up from time to time. No statement costs more
//! where the log is larger.

use std::time::Duration;

use chrono::{DateTime, Utc};
use diesel::Queryable;
use diesel::sql_types::{BigInt, Bool, Double, Interval, Text, Timestamptz};

use super::upkeep::{UPKEEP, UPKEEP_ASLEEP};
use super::worker::Worker;
use crate::backlog::{self, Reading};
use crate::metrics::Sample;
use crate::options::{RelayOptions, Wake};
use crate::partition::interval;
use crate::publish::Publisher;
use crate::session::{Mode, Session, SessionError};
use crate::statement::statement;

const FAILURES: &str = "\
SELECT (SELECT count(*) FROM (SELECT FROM outbox.parked p WHERE p.subscription = a.name LIMIT 10001) found),
       (SELECT count(*) FROM (SELECT FROM outbox.parked p WHERE p.subscription = a.name AND p.dead LIMIT 10001) found),
       clock_timestamp()
FROM (SELECT $1::text AS name) a";

// A partition is overdue if the newest tick that is older than the retention was taken after its end,
// and it was not emptied since.
const PARTITIONS: &str = "\
SELECT count(*) FILTER (WHERE l.from_seq > pg_sequence_last_value('outbox.event_seq')),
       count(*) FILTER (WHERE l.to_seq - 1 <= old.seq_before AND pg_relation_size(l.oid) > 0),
       (SELECT count(*) FROM (SELECT FROM outbox.events_default LIMIT 10001) found)
FROM outbox.leaves l
LEFT JOIN (SELECT t.seq_before FROM outbox.ticks t
           WHERE t.tick <= ((extract(epoch FROM clock_timestamp()) - extract(epoch FROM $1::interval)) * 1000000)::bigint
           ORDER BY t.tick DESC LIMIT 1) old ON true";

// Its events are not visible to anybody, but the lock that an INSERT takes on the log is. When the
// transaction of another role began, not every role may see.
const TRANSACTIONS: &str = "\
SELECT coalesce(bool_or(o.began IS NULL), false),
       coalesce(extract(epoch FROM max(clock_timestamp() - o.began)), 0)::float8
FROM (
    SELECT coalesce(a.xact_start, p.prepared) AS began
    FROM pg_locks l
    LEFT JOIN pg_stat_activity a ON a.pid = l.pid
    LEFT JOIN pg_locks x ON l.pid IS NULL AND x.pid IS NULL AND x.locktype = 'transactionid'
        AND x.virtualtransaction = l.virtualtransaction
    LEFT JOIN pg_prepared_xacts p ON p.transaction = x.transactionid
    WHERE l.locktype = 'relation' AND l.relation = 'outbox.events'::regclass
      AND l.database = outbox.database_oid() AND l.mode = 'RowExclusiveLock' AND l.granted
      AND l.pid IS DISTINCT FROM pg_backend_pid()) o";

// What holds back VACUUM in this database: snapshots and transactions, also of standbys that send
// theirs, prepared transactions and replication slots. Not every role may see those of another one.
const HORIZON: &str = "\
SELECT coalesce(bool_or(h.hidden), false), coalesce(max(h.age), 0)::bigint
FROM (
    SELECT greatest(age(a.backend_xmin), age(a.backend_xid)) AS age, a.query = '<insufficient privilege>' AS hidden
    FROM pg_stat_activity a
    WHERE (a.datid = outbox.database_oid() OR a.backend_type = 'walsender') AND a.pid <> pg_backend_pid()
    UNION ALL
    SELECT age(p.transaction), false FROM pg_prepared_xacts p WHERE p.database = current_database()
    UNION ALL
    SELECT age(s.xmin), false FROM pg_replication_slots s) h";

const NOTIFICATIONS: &str = "SELECT pg_notification_queue_usage()";

#[derive(Queryable)]
struct Failures {
    parked: i64,
    dead: i64,
    now: DateTime<Utc>,
}

#[derive(Queryable)]
struct Partitions {
    ahead: i64,
    overdue: i64,
    default_rows: i64,
}

impl<P: Publisher> Worker<P> {
    /// Looks, and sets the gauges. What cannot be told is not kept as it was.
    ///
    /// # Errors
    /// Only if the connection can't be used any more.
    pub(super) async fn sample(&mut self, session: &mut Session) -> Result<(), SessionError> {
        let mut sample = Sample::UNKNOWN;
        let name = self.who.subscription.clone();
        let failures = statement::<(BigInt, BigInt, Timestamptz)>(FAILURES).bind::<Text, _>(name);
        let failures = session.load(Mode::Read, failures).await;
        if let Some(Failures { parked, dead, now }) =
            self.looked("counting parked events", failures)?
        {
            self.health.meter().clock(now);
            (sample.parked, sample.dead) = (float(parked), float(dead));
            let look = backlog::look(Some(&self.who.subscription));
            let readings: Result<Vec<Reading>, _> = session.load(Mode::Read, look).await;
            if let Some(readings) = self.upkeep.note("counting pending events", readings)? {
                (sample.pending, sample.oldest_pending) = pending(&readings, now);
            }
        }
        let retention = interval(self.options.retention);
        let partitions =
            statement::<(BigInt, BigInt, BigInt)>(PARTITIONS).bind::<Interval, _>(retention);
        let partitions = session.load(Mode::Read, partitions).await;
        if let Some(Partitions { ahead, overdue, default_rows }) =
            self.looked("counting partitions", partitions)?
        {
            sample.ahead = float(ahead);
            sample.overdue = float(overdue);
            sample.default_rows = float(default_rows);
        }
        let transactions = statement::<(Bool, Double)>(TRANSACTIONS);
        let transactions = session.load(Mode::Read, transactions).await;
        if let Some((false, seconds)) =
            self.looked("looking for open transactions", transactions)?
        {
            sample.oldest_transaction = seconds;
        }
        let horizon = session.load(Mode::Read, statement::<(Bool, BigInt)>(HORIZON)).await;
        if let Some((false, transactions)) =
            self.looked("looking for what holds back VACUUM", horizon)?
        {
            sample.oldest_snapshot = float(transactions);
        }
        let notifications = session.load(Mode::Read, statement::<Double>(NOTIFICATIONS)).await;
        if let Some(usage) = self.looked("looking at the queue of notifications", notifications)? {
            sample.notifications = usage;
        }
        self.health.sampled(sample, self.next_look());
        Ok(())
    }

    /// Within which time there is another look, unless the loop is stuck.
    fn next_look(&self) -> Duration {
        let RelayOptions { wake, publish_timeout, database_timeout, poll_asleep, .. } =
            self.options;
        let pause = match wake {
            Wake::Poll => UPKEEP,
            Wake::Listen => UPKEEP * UPKEEP_ASLEEP + poll_asleep,
        };
        // It is looked at between two batches: each has its attempt, and statements before and after.
        pause.saturating_add(UPKEEP).saturating_add((publish_timeout + database_timeout) * 2)
    }

    fn looked<T>(
        &mut self,
        duty: &'static str,
        rows: Result<Vec<T>, SessionError>,
    ) -> Result<Option<T>, SessionError> {
        let rows = self.upkeep.note(duty, rows)?;
        Ok(rows.and_then(|rows| rows.into_iter().next()))
    }
}

/// How many events are pending, and how old the oldest is.
fn pending(readings: &[Reading], now: DateTime<Utc>) -> (f64, f64) {
    let (pending, _) = backlog::pending(readings);
    let oldest = readings.iter().filter_map(|reading| reading.oldest_at).min();
    let age = oldest.map_or(0.0, |oldest| (now - oldest).as_seconds_f64().max(0.0));
    (float(i64::try_from(pending).unwrap_or(i64::MAX)), age)
}

#[allow(clippy::cast_precision_loss, reason = "nobody counts 2^53 events one by one")]
fn float(number: i64) -> f64 {
    number as f64
}
