//! Metrics: what a process emits and its relays deliver, through the facade [`metrics`]. Which
//! exporter, the program decides; install it before anything is emitted and relays are spawned.
//!
//! | metric | kind | what it tells |
//! |---|---|---|
//! | `outbox_emits_total` | counter | events emitted by this process, whatever became of their transactions |
//! | `outbox_events_published_total` | counter | events that the broker acknowledged |
//! | `outbox_events_failed_total` | counter | tries of events that failed, by `event_type` |
//! | `outbox_batch_duration_seconds` | histogram | from a batch that was read to its last acknowledgement |
//! | `outbox_publish_latency_seconds` | histogram | from `created_at` to the broker's acknowledgement |
//! | `outbox_relay_up` | gauge | 1 while the relay works; 0 while it has no database, and once it has ended |
//! | `outbox_relay_last_progress_timestamp_seconds` | gauge | when it last delivered something, or found nothing to deliver |
//! | `outbox_shards_leased` | gauge | how many of the 16 shards it leases |
//! | `outbox_publisher_available` | gauge | 1: the broker can be used, 0: it is away |
//! | `outbox_events_pending` | gauge | committed and not delivered: exact up to 10,000, then an upper estimate |
//! | `outbox_oldest_pending_seconds` | gauge | age of the oldest of them, 0 if there are none |
//! | `outbox_parked` | gauge | events put aside: retrying, held or dead; counted up to 10,001 |
//! | `outbox_dead_letters` | gauge | those of them that ran out of attempts; counted up to 10,001 |
//! | `outbox_default_partition_rows` | gauge | events for which no partition was ready; counted up to 10,001 |
//! | `outbox_partitions_ahead` | gauge | partitions ahead of the sequence |
//! | `outbox_overdue_partitions` | gauge | partitions that are older than the retention and still hold events |
//! | `outbox_oldest_open_transaction_seconds` | gauge | age of the oldest open transaction that has emitted |
//! | `outbox_oldest_snapshot_transactions` | gauge | how many transactions began since the oldest snapshot, transaction or replication slot that holds back `VACUUM`, whether or not it has emitted |
//! | `outbox_notification_queue_usage` | gauge | how full the server's queue of notifications is, 0 to 1; full, it fails every commit that notifies |
//!
//! All but `outbox_emits_total`, which belongs to no subscription, carry the label `subscription`.
//! `event_type` has at most 100 values in a process, then `other`. There is no other label.
//!
//! Every relay looks at the database every 5 seconds, at the same cost however large the log is, so
//! that several relays of a subscription tell the same: take their `max`. **A gauge never keeps its
//! last good value**: of a relay that is interrupted or has ended, all that it cannot know any more
//! is `NaN`, and `outbox_shards_leased` and `outbox_relay_up` are 0. If its loop is stuck,
//! because a publisher blocks the thread, that is so after half a minute (longer with longer timeouts,
//! or if it sleeps). Run one relay of a subscription in a process, else they share these gauges.
//!
//! Latencies compare the database's clock with itself: the difference to this host's is measured
//! with each look.
//!
//! [`metrics`]: https://docs.rs/metrics

#[cfg(feature = "metrics")]
mod recorded;
#[cfg(all(feature = "metrics", feature = "relay"))]
mod relay;
#[cfg(not(feature = "metrics"))]
mod silent;

#[cfg(feature = "metrics")]
pub use self::recorded::describe;
#[cfg(all(feature = "metrics", feature = "emit"))]
pub(crate) use self::recorded::emitted;
#[cfg(all(feature = "metrics", feature = "relay"))]
pub(crate) use self::relay::{Batch, Meter, Sample};
#[cfg(all(not(feature = "metrics"), feature = "emit"))]
pub(crate) use self::silent::emitted;
#[cfg(all(not(feature = "metrics"), feature = "relay"))]
pub(crate) use self::silent::{Batch, Meter};

/// What a relay is up to.
#[cfg(feature = "relay")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Condition {
    /// It has no shards yet.
    Starting,
    Delivering,
    BrokerAway,
    /// It cannot know how things are.
    Blind,
}
