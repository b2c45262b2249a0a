//! Which dead letters are meant.

use chrono::{DateTime, Utc};
use diesel::sql_types::{Nullable, Text, Timestamptz};

use crate::statement::Statement;

/// Which dead letters are meant. Without any setting: all of them, of all subscriptions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Filter {
    subscription: Option<String>,
    topic: Option<String>,
    aggregate_type: Option<String>,
    aggregate_id: Option<String>,
    event_type: Option<String>,
    error_contains: Option<String>,
    since: Option<DateTime<Utc>>,
    until: Option<DateTime<Utc>>,
}

impl Filter {
    /// Only those of this subscription. Default: of all.
    #[must_use]
    pub fn subscription(mut self, subscription: impl Into<String>) -> Self {
        self.subscription = Some(subscription.into());
        self
    }

    /// Only those of this topic. Default: of all.
    #[must_use]
    pub fn topic(mut self, topic: impl Into<String>) -> Self {
        self.topic = Some(topic.into());
        self
    }

    /// Only those of aggregates of this type. Default: of all.
    #[must_use]
    pub fn aggregate_type(mut self, aggregate_type: impl Into<String>) -> Self {
        self.aggregate_type = Some(aggregate_type.into());
        self
    }

    /// Only those of aggregates with this id. Default: of all.
    #[must_use]
    pub fn aggregate_id(mut self, aggregate_id: impl Into<String>) -> Self {
        self.aggregate_id = Some(aggregate_id.into());
        self
    }

    /// Only those of this event type. Default: of all.
    #[must_use]
    pub fn event_type(mut self, event_type: impl Into<String>) -> Self {
        self.event_type = Some(event_type.into());
        self
    }

    /// Only those whose last error contains this text, upper and lower case as they are. Default:
    /// whatever the error.
    #[must_use]
    pub fn error_contains(mut self, text: impl Into<String>) -> Self {
        self.error_contains = Some(text.into());
        self
    }

    /// Only events emitted at this time or later. Default: from the beginning.
    #[must_use]
    pub fn since(mut self, since: DateTime<Utc>) -> Self {
        self.since = Some(since);
        self
    }

    /// Only events emitted before this time. Default: to the end.
    #[must_use]
    pub fn until(mut self, until: DateTime<Utc>) -> Self {
        self.until = Some(until);
        self
    }

    /// Binds the parameters of [`dead_letters_of`].
    pub(super) fn bind<Returns>(
        &self,
        statement: Statement<Returns>,
    ) -> Statement<Returns, FilterBinds> {
        statement
            .bind::<Nullable<Text>, _>(self.subscription.clone())
            .bind::<Nullable<Text>, _>(self.topic.clone())
            .bind::<Nullable<Text>, _>(self.aggregate_type.clone())
            .bind::<Nullable<Text>, _>(self.aggregate_id.clone())
            .bind::<Nullable<Text>, _>(self.event_type.clone())
            .bind::<Nullable<Text>, _>(self.error_contains.clone())
            .bind::<Nullable<Timestamptz>, _>(self.since)
            .bind::<Nullable<Timestamptz>, _>(self.until)
    }
}

type Bound<T, ST> = <T as diesel::expression::AsExpression<ST>>::Expression;
type Texts<Before> = (Before, Bound<Option<String>, Nullable<Text>>);
type Times<Before> = (Before, Bound<Option<DateTime<Utc>>, Nullable<Timestamptz>>);
/// Six texts, two times.
pub(super) type FilterBinds = Times<Times<Texts<Texts<Texts<Texts<Texts<Texts<()>>>>>>>>;

// The statement's first parameters, in the order in which `bind` binds them.
macro_rules! dead_letters_of {
    () => {
        "p.dead AND p.subscription = coalesce($1, p.subscription) AND p.topic = coalesce($2, p.topic) \
         AND p.aggregate_type = coalesce($3, p.aggregate_type) AND p.aggregate_id = coalesce($4, p.aggregate_id) \
         AND p.event_type = coalesce($5, p.event_type) AND strpos(coalesce(p.error, ''), coalesce($6, '')) > 0 \
         AND p.created_at >= coalesce($7, '-infinity') AND p.created_at < coalesce($8, 'infinity')"
    };
}
pub(super) use dead_letters_of;
