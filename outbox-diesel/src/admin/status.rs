//! Where an event stands in a subscription, in one word.

use std::fmt;

/// Where an event stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Status {
    /// The cursor has not passed it yet.
    Pending,
    /// The cursor has passed it: it was delivered, skipped, or older than the subscription.
    Published,
    /// It was rejected and is tried again.
    Retrying,
    /// It waits for an earlier event of its aggregate.
    Held,
    /// It ran out of attempts.
    Dead,
    /// An operator gave it up.
    Discarded,
    /// The subscription does not get its topic.
    Filtered,
}

impl Status {
    const ALL: [Self; 7] = [
        Self::Pending,
        Self::Published,
        Self::Retrying,
        Self::Held,
        Self::Dead,
        Self::Discarded,
        Self::Filtered,
    ];

    pub(super) fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.as_str() == word)
    }

    /// The word for it, as in the view `outbox.event_status`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Published => "published",
            Self::Retrying => "retrying",
            Self::Held => "held",
            Self::Dead => "dead",
            Self::Discarded => "discarded",
            Self::Filtered => "filtered",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
