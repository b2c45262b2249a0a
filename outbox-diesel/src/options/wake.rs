//! How a relay learns of new events.

/// How a relay learns of new events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wake {
    /// It asks, every [`poll_idle`](super::RelayOptions::poll_idle) while nothing happens: 50 cheap
    /// statements a second, which cost writers nothing and work behind every pooler.
    #[default]
    Poll,
    /// It sleeps while nothing happens, and the first commit wakes it with `NOTIFY`: for databases
    /// that must not be polled, because they are billed by activity or are to suspend. A quarter of
    /// a second after the last event it falls asleep; then it needs less than two statements a
    /// second. While all relays are awake, emits notify nobody.
    ///
    /// A relay with this setting
    /// - installs a trigger on `outbox.events` when it starts, and says so; `outbox.remove_wake()`
    ///   removes it,
    /// - opens a third connection, which must reach the server itself: see
    ///   [`Relay::direct`](crate::Relay::direct). Until it has heard itself there, it polls.
    /// - polls while a transaction stays open that may have emitted before the relay fell asleep,
    /// - refuses to run where `max_prepared_transactions` is not 0: `NOTIFY` would abort
    ///   `PREPARE TRANSACTION`.
    ///
    /// What happens while it sleeps and wakes nobody, such as the crash of another relay, it notices
    /// up to [`poll_asleep`](super::RelayOptions::poll_asleep) later.
    Listen,
}
