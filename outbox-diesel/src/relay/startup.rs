//! What must hold before a relay touches anything.

use diesel::Queryable;
use diesel::sql_types::{BigInt, Bool, Nullable, Text, Uuid as SqlUuid};
use uuid::Uuid;

use crate::migrate::MIGRATIONS;
use crate::session::{Mode, Session, SessionError};
use crate::statement::{Statement, statement};

/// Why a relay does not start. It looks again every few seconds, so that what is mended needs no
/// restart.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The schema is not there.
    #[error("schema outbox is missing; run outbox_diesel::migrate::run, or \"outbox migrate run\"")]
    NotMigrated,
    /// The schema is older than this library.
    #[error(
        "schema outbox is at version {found}, older than the {needed} of this library; run outbox_diesel::migrate::run, or \"outbox migrate run\""
    )]
    SchemaOlder {
        /// The newest migration that ran.
        found: String,
        /// The newest one of this library.
        needed: &'static str,
    },
    /// The schema is newer than this library.
    #[error(
        "schema outbox is at version {found}, newer than the {known} of this library; update outbox-diesel"
    )]
    SchemaNewer {
        /// The newest migration that ran.
        found: String,
        /// The newest one of this library.
        known: &'static str,
    },
    /// The tables were dumped and restored into another database, where transaction ids mean
    /// something else.
    #[error(
        "this outbox was made in another database ({made_in}; this is {here}): its transaction ids mean nothing here; run \"outbox rebase\""
    )]
    Foreign {
        /// System identifier and database oid stored.
        made_in: String,
        /// Those of this database.
        here: String,
    },
    /// The server takes no writes.
    #[error("connected to a read-only server; point the relay at the primary")]
    ReadOnly,
    /// No such subscription.
    #[error(
        "there is no subscription {0:?}; create it with outbox_diesel::subscription::create, or \"outbox subscriptions create\""
    )]
    NoSubscription(String),
    /// The sequence was altered, so that draw order is not insert order.
    #[error(
        "sequence outbox.event_seq must have CACHE 1, INCREMENT 1 and NO CYCLE; put it back with ALTER SEQUENCE outbox.event_seq CACHE 1 INCREMENT BY 1 NO CYCLE"
    )]
    Sequence,
    /// The sequence lies below what was drawn from it, for example after a restore without setval.
    #[error(
        "sequence outbox.event_seq is at {at}, but {found} was drawn already: it was set back or not restored; run \"outbox rebase\""
    )]
    SequenceBehind {
        /// Where it is.
        at: i64,
        /// A value that an event has or a tick saw.
        found: i64,
    },
    /// The relay's role may not see where the sequence is.
    #[error(
        "the value of sequence outbox.event_seq cannot be read; GRANT USAGE ON SEQUENCE outbox.event_seq to the relay's role"
    )]
    SequenceUnreadable,
    /// Emits would notify, and `PREPARE TRANSACTION` fails in a transaction that has.
    #[error(
        "Wake::Listen does not go with max_prepared_transactions = {allowed}: NOTIFY would abort every PREPARE TRANSACTION that emits; set it to 0 and restart the server, or use Wake::Poll"
    )]
    PreparedTransactions {
        /// The setting.
        allowed: i64,
    },
    /// A check itself failed.
    #[error(transparent)]
    Session(#[from] SessionError),
}

/// Whether the schema is there, and whether the server takes no writes.
pub(crate) const INSTALLED: &str = "\
SELECT to_regclass('outbox.migrations') IS NOT NULL,
       pg_is_in_recovery() OR current_setting('default_transaction_read_only')::boolean";

pub(crate) const NEWEST_MIGRATION: &str = "SELECT max(version) FROM outbox.migrations";

// A sequence that nothing was drawn from is at 0, but the migration draws one: it was not restored.
const FACTS: &str = "\
SELECT m.source_id, s.generation,
       m.system_identifier, outbox.system_identifier(), m.database_oid, outbox.database_oid(),
       q.seqincrement = 1 AND q.seqcache = 1 AND NOT q.seqcycle,
       at.seq,
       greatest((SELECT e.seq FROM outbox.events e WHERE e.seq > at.seq ORDER BY e.seq LIMIT 1),
                (SELECT t.seq_after FROM outbox.ticks t ORDER BY t.tick DESC LIMIT 1), 1)
FROM outbox.meta m
CROSS JOIN pg_sequence q
CROSS JOIN (SELECT coalesce(pg_sequence_last_value('outbox.event_seq'),
                            CASE WHEN has_sequence_privilege('outbox.event_seq', 'USAGE, SELECT') THEN 0 END) AS seq) at
LEFT JOIN outbox.subscriptions s ON s.name = $1
WHERE q.seqrelid = 'outbox.event_seq'::regclass";

type FactsColumns = (
    SqlUuid,
    Nullable<BigInt>,
    Nullable<BigInt>,
    Nullable<BigInt>,
    Nullable<BigInt>,
    Nullable<BigInt>,
    Bool,
    Nullable<BigInt>,
    BigInt,
);

/// Asks for what [`judge`] judges.
pub(crate) fn facts(subscription: &str) -> Statement<FactsColumns, ((), Bound<String, Text>)> {
    statement::<FactsColumns>(FACTS).bind::<Text, _>(subscription.to_owned())
}

type Bound<T, ST> = <T as diesel::expression::AsExpression<ST>>::Expression;

/// What the database says of itself.
#[derive(Queryable)]
pub(crate) struct FactsRow {
    source_id: Uuid,
    generation: Option<i64>,
    made_by_system: Option<i64>,
    system: Option<i64>,
    made_in_database: Option<i64>,
    database: Option<i64>,
    sequence_in_order: bool,
    sequence_at: Option<i64>,
    sequence_was_at: i64,
}

/// What a relay needs to know of the outbox.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(super) source: Uuid,
    pub(super) generation: i64,
}

/// Checks the database and returns what the relay needs to know.
pub(super) async fn check(session: &mut Session, subscription: &str) -> Result<Facts, Refusal> {
    let installed: Vec<(bool, bool)> =
        session.load(Mode::Read, statement::<(Bool, Bool)>(INSTALLED)).await?;
    judge_installed(installed.first())?;
    let found: Vec<Option<String>> =
        session.load(Mode::Read, statement::<Nullable<Text>>(NEWEST_MIGRATION)).await?;
    judge_version(found.into_iter().next().flatten())?;
    let rows: Vec<FactsRow> = session.load(Mode::Read, facts(subscription)).await?;
    judge(rows.into_iter().next(), subscription)
}

/// Refuses a server without the schema, or one that takes no writes.
pub(crate) fn judge_installed(installed: Option<&(bool, bool)>) -> Result<(), Refusal> {
    match installed {
        Some((true, false)) => Ok(()),
        Some((true, true)) => Err(Refusal::ReadOnly),
        _ => Err(Refusal::NotMigrated),
    }
}

/// Refuses a schema of another version.
pub(crate) fn judge_version(found: Option<String>) -> Result<(), Refusal> {
    let found = found.unwrap_or_default();
    let known = MIGRATIONS.last().expect("the library has migrations").version;
    match found.as_str().cmp(known) {
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Less => Err(Refusal::SchemaOlder { found, needed: known }),
        std::cmp::Ordering::Greater => Err(Refusal::SchemaNewer { found, known }),
    }
}

/// Refuses a database that is not this outbox's own, and a sequence that is not in order.
pub(crate) fn judge(row: Option<FactsRow>, subscription: &str) -> Result<Facts, Refusal> {
    let facts = row.ok_or(Refusal::NotMigrated)?;
    let differ = |made: Option<i64>, here| matches!((made, here), (Some(m), Some(h)) if m != h);
    if differ(facts.made_by_system, facts.system) || differ(facts.made_in_database, facts.database)
    {
        let name = |system: Option<i64>, database: Option<i64>| {
            let part = |id: Option<i64>| id.map_or("unknown".to_owned(), |id| id.to_string());
            format!("system {}, database {}", part(system), part(database))
        };
        return Err(Refusal::Foreign {
            made_in: name(facts.made_by_system, facts.made_in_database),
            here: name(facts.system, facts.database),
        });
    }
    if !facts.sequence_in_order {
        return Err(Refusal::Sequence);
    }
    let at = facts.sequence_at.ok_or(Refusal::SequenceUnreadable)?;
    let found = facts.sequence_was_at;
    if at < found {
        return Err(Refusal::SequenceBehind { at, found });
    }
    let generation =
        facts.generation.ok_or_else(|| Refusal::NoSubscription(subscription.to_owned()))?;
    Ok(Facts { source: facts.source_id, generation })
}
