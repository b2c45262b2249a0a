//! Is this the outbox's own database, and of the right version? What a relay would refuse.

use diesel::sql_types::{Bool, Nullable, Text};
use diesel_async::AsyncPgConnection;

use super::{Finding, Severity};
use crate::operation::{AdminError, begin_look, end, load};
use crate::relay::Refusal;
use crate::relay::startup::{
    FactsRow, INSTALLED, NEWEST_MIGRATION, facts, judge, judge_installed, judge_version,
};
use crate::statement::statement;

/// What is to be said of the database itself.
pub(super) struct Home {
    /// Whether anything else can be asked.
    pub(super) is_readable: bool,
    pub(super) findings: Vec<Finding>,
}

pub(super) async fn examine(conn: &mut AsyncPgConnection) -> Result<Home, AdminError> {
    begin_look(conn).await?;
    let home = look(conn).await;
    end(conn, home).await
}

const FIRST: &str = "SELECT name FROM outbox.subscriptions ORDER BY name LIMIT 1";

async fn look(conn: &mut AsyncPgConnection) -> Result<Home, AdminError> {
    let installed: Vec<(bool, bool)> = load(conn, statement::<(Bool, Bool)>(INSTALLED)).await?;
    let mut findings = Vec::new();
    match judge_installed(installed.first()) {
        Ok(()) => {}
        // A standby can still be asked.
        Err(refusal @ Refusal::ReadOnly) => findings.push(finding(&refusal)),
        Err(refusal) => return Ok(unreadable(&refusal)),
    }
    let found: Vec<Option<String>> =
        load(conn, statement::<Nullable<Text>>(NEWEST_MIGRATION)).await?;
    if let Err(refusal) = judge_version(found.into_iter().next().flatten()) {
        return Ok(unreadable(&refusal));
    }
    let first: Vec<String> = load(conn, statement::<Text>(FIRST)).await?;
    // Of whichever subscription: only whether there is one at all depends on it.
    let subscription = first.into_iter().next().unwrap_or_else(|| "default".to_owned());
    let rows: Vec<FactsRow> = load(conn, facts(&subscription)).await?;
    if let Err(refusal) = judge(rows.into_iter().next(), &subscription) {
        findings.push(finding(&refusal));
    }
    Ok(Home { is_readable: true, findings })
}

fn unreadable(refusal: &Refusal) -> Home {
    Home { is_readable: false, findings: vec![finding(refusal)] }
}

fn finding(refusal: &Refusal) -> Finding {
    let (name, remedy) = match refusal {
        Refusal::NotMigrated => ("schema-missing", "outbox migrate run"),
        Refusal::SchemaOlder { .. } => ("schema-older", "outbox migrate run"),
        Refusal::SchemaNewer { .. } => {
            ("schema-newer", "cargo install outbox-cli  # and update outbox-diesel in the services")
        }
        Refusal::Foreign { .. } => ("foreign-database", "outbox rebase"),
        Refusal::SequenceBehind { .. } => ("sequence-behind", "outbox rebase"),
        Refusal::ReadOnly => ("read-only-server", "point DATABASE_URL at the primary"),
        Refusal::NoSubscription(_) => ("no-subscription", "outbox subscriptions create default"),
        Refusal::Sequence => {
            ("sequence-altered", "ALTER SEQUENCE outbox.event_seq CACHE 1 INCREMENT BY 1 NO CYCLE")
        }
        Refusal::SequenceUnreadable => (
            "sequence-unreadable",
            "GRANT SELECT ON SEQUENCE outbox.event_seq TO <the role of the relays>",
        ),
        Refusal::PreparedTransactions { .. } => (
            "prepared-transactions",
            "ALTER SYSTEM SET max_prepared_transactions = 0  -- and restart the server",
        ),
        Refusal::Session(_) => ("not-examined", "outbox doctor"),
    };
    Finding {
        name,
        severity: Severity::Critical,
        summary: refusal.to_string(),
        evidence: vec!["relays refuse to work here until that is mended".to_owned()],
        remedy: remedy.to_owned(),
    }
}
