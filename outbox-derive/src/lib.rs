//! `#[derive(OutboxEvent)]`, re-exported by `outbox-diesel`.
