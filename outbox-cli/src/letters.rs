//! Which dead letters are meant.

use chrono::{DateTime, Utc};
use outbox_diesel::admin::Filter;

use crate::times::parse_time;

type Setter = fn(Filter, String) -> Filter;

/// Which dead letters are meant. Without any of these: all of them.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Which {
    /// Only those of this topic.
    #[arg(long)]
    topic: Option<String>,
    /// Only those of aggregates of this type.
    #[arg(long)]
    aggregate_type: Option<String>,
    /// Only those of aggregates with this id.
    #[arg(long)]
    aggregate_id: Option<String>,
    /// Only those of this event type.
    #[arg(long)]
    event_type: Option<String>,
    /// Only those whose last error contains this text.
    #[arg(long, value_name = "TEXT")]
    error: Option<String>,
    /// Only events emitted at this time or later: 2026-11-30T12:00:00Z, or 2h for two hours ago.
    #[arg(long, value_parser = parse_time, value_name = "TIME")]
    since: Option<DateTime<Utc>>,
    /// Only events emitted before this time.
    #[arg(long, value_parser = parse_time, value_name = "TIME")]
    until: Option<DateTime<Utc>>,
}

impl Which {
    /// The library's filter; of all subscriptions without one.
    pub(crate) fn filter(&self, subscription: Option<&str>) -> Filter {
        let mut filter = Filter::default();
        let texts: [(&Option<String>, Setter); 5] = [
            (&self.topic, Filter::topic),
            (&self.aggregate_type, Filter::aggregate_type),
            (&self.aggregate_id, Filter::aggregate_id),
            (&self.event_type, Filter::event_type),
            (&self.error, Filter::error_contains),
        ];
        for (value, set) in texts {
            if let Some(value) = value {
                filter = set(filter, value.clone());
            }
        }
        if let Some(subscription) = subscription {
            filter = filter.subscription(subscription);
        }
        if let Some(since) = self.since {
            filter = filter.since(since);
        }
        if let Some(until) = self.until {
            filter = filter.until(until);
        }
        filter
    }
}
