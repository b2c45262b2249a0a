//! Names and helps, and what is counted outside of relays.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

const COUNTERS: &[(&str, &str)] = &[
    ("outbox_emits_total", "Events emitted by this process, whatever became of their transactions"),
    ("outbox_events_published_total", "Events that the broker acknowledged"),
    ("outbox_events_failed_total", "Tries of events that failed"),
];

const HISTOGRAMS: &[(&str, &str)] = &[
    ("outbox_batch_duration_seconds", "From a batch that was read to its last acknowledgement"),
    ("outbox_publish_latency_seconds", "From created_at to the broker's acknowledgement"),
];

const GAUGES: &[(&str, Unit, &str)] = &[
    (
        "outbox_relay_up",
        Unit::Count,
        "1 while the relay works, 0 without a database and once it has ended",
    ),
    (
        "outbox_relay_last_progress_timestamp_seconds",
        Unit::Seconds,
        "When the relay last delivered something, or found nothing to deliver",
    ),
    ("outbox_shards_leased", Unit::Count, "How many of the 16 shards the relay leases"),
    ("outbox_publisher_available", Unit::Count, "1 if the broker can be used, 0 if it is away"),
    (
        "outbox_events_pending",
        Unit::Count,
        "Committed events that are not delivered: exact up to 10000, then an upper estimate",
    ),
    (
        "outbox_oldest_pending_seconds",
        Unit::Seconds,
        "Age of the oldest pending event, 0 without one",
    ),
    ("outbox_parked", Unit::Count, "Events put aside: retrying, held or dead, counted up to 10001"),
    ("outbox_dead_letters", Unit::Count, "Events that ran out of attempts, counted up to 10001"),
    (
        "outbox_default_partition_rows",
        Unit::Count,
        "Events for which no partition was ready, counted up to 10001",
    ),
    ("outbox_partitions_ahead", Unit::Count, "Partitions ahead of the sequence"),
    (
        "outbox_overdue_partitions",
        Unit::Count,
        "Partitions that are older than the retention and still hold events",
    ),
    (
        "outbox_oldest_open_transaction_seconds",
        Unit::Seconds,
        "Age of the oldest open transaction that has emitted",
    ),
    (
        "outbox_oldest_snapshot_transactions",
        Unit::Count,
        "How many transactions began since the oldest one that VACUUM has to wait for",
    ),
    (
        "outbox_notification_queue_usage",
        Unit::Count,
        "How full the server's queue of notifications is, 0 to 1",
    ),
];

/// Tells the installed exporter what each metric is. Relays do so when they start; call it in
/// programs that only emit.
pub fn describe() {
    for (name, help) in COUNTERS {
        describe_counter!(*name, Unit::Count, *help);
    }
    for (name, help) in HISTOGRAMS {
        describe_histogram!(*name, Unit::Seconds, *help);
    }
    for (name, unit, help) in GAUGES {
        describe_gauge!(*name, *unit, *help);
    }
}

/// Events were inserted.
#[cfg(feature = "emit")]
pub(crate) fn emitted(events: usize) {
    if events > 0 {
        metrics::counter!("outbox_emits_total").increment(events as u64);
    }
}
