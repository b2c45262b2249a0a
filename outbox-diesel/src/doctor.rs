//! Doctor: why is nothing being delivered?
//!
//! [`examine`] looks at the database and names what stands in the way, the worst first, each with
//! what was seen and the command that mends it. It changes nothing and reads nothing that grows
//! with the log, so that it can be asked at any time. What the database cannot see, such as the
//! streams of a broker, is for the command `outbox doctor`, which asks this first.
//!
//! ```no_run
//! # async fn example(conn: &mut diesel_async::AsyncPgConnection) -> Result<(), outbox_diesel::admin::AdminError> {
//! for finding in outbox_diesel::doctor::examine(conn).await? {
//!     println!("{}: {}\n  {}", finding.severity, finding.summary, finding.remedy);
//! }
//! # Ok(())
//! # }
//! ```

mod clock;
mod crashes;
mod delivery;
mod home;
mod notifications;
mod parked;
mod rights;
mod storage;
mod topics;
mod transactions;

use std::fmt;

use chrono::{DateTime, TimeDelta, Utc};
use diesel_async::AsyncPgConnection;

use crate::admin::{self, AdminError};
use crate::relay::chain;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Severity {
    /// Good to know.
    Note,
    /// Something is delivered late, or will be.
    Warning,
    /// Something is not delivered, and will not be until somebody acts.
    Critical,
}

impl Severity {
    /// The word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Critical => "critical",
        }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// What stands in the way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Its name, for machines: `no-relay`, `open-transaction`, …
    pub name: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// What is wrong, in one sentence.
    pub summary: String,
    /// What was seen.
    pub evidence: Vec<String>,
    /// The command that mends it: of the shell, or SQL.
    pub remedy: String,
}

/// Looks for what stands in the way of delivery: the worst first, and of the same severity the
/// cause before its consequences. Nothing found: all is well.
///
/// What this role may not look at is a finding of its own, `not-examined`.
///
/// # Errors
/// The connection is lost, or is in a transaction.
///
/// # Cancel safety
/// Drop the connection if the future was dropped: its transaction may still be open.
pub async fn examine(conn: &mut AsyncPgConnection) -> Result<Vec<Finding>, AdminError> {
    let mut findings = Vec::new();
    match home::examine(conn).await {
        // Without the right schema nothing else can be asked.
        Ok(home) if !home.is_readable => return Ok(home.findings),
        Ok(home) => findings.extend(home.findings),
        Err(error) => findings.push(not_examined("the schema", error)?),
    }
    let (mut overview, mut delivery) = (None, Vec::new());
    match admin::overview(conn).await {
        Ok(seen) => {
            delivery = delivery::judge(&seen);
            overview = Some(seen);
        }
        Err(error) => delivery.push(not_examined("cursors and relays", error)?),
    }
    let mut gather = |what, result| match result {
        Ok(found) => {
            findings.extend::<Vec<Finding>>(found);
            Ok(())
        }
        Err(error) => not_examined(what, error).map(|finding| findings.push(finding)),
    };
    // Why relays cannot work comes before that they do not.
    gather("rights", rights::examine(conn, overview.as_ref()).await)?;
    gather("locks on cursors", delivery::examine_locks(conn, overview.as_ref()).await)?;
    gather("relays", Ok(delivery))?;
    gather("crashes", crashes::examine(conn).await)?;
    gather("what is parked", parked::examine(conn).await)?;
    gather("open transactions", transactions::examine(conn).await)?;
    gather("notifications", notifications::examine(conn).await)?;
    gather("partitions", storage::examine(conn).await)?;
    gather("topics", topics::examine(conn).await)?;
    gather("clocks", clock::examine(conn).await)?;
    if !findings.iter().any(|finding| finding.severity >= Severity::Warning) {
        findings.extend(overview.as_ref().into_iter().flat_map(delivery::judge_lag));
    }
    // Stable: the cause stays before its consequences.
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    Ok(findings)
}

/// A check that the database did not answer.
fn not_examined(what: &str, error: AdminError) -> Result<Finding, AdminError> {
    use diesel::result::{DatabaseErrorKind, Error as Diesel};
    match error {
        AdminError::InTransaction => Err(error),
        AdminError::Database(Diesel::DatabaseError(DatabaseErrorKind::ClosedConnection, _)) => {
            Err(error)
        }
        error => Ok(Finding {
            name: "not-examined",
            severity: Severity::Warning,
            summary: format!("{what} could not be examined"),
            evidence: vec![chain(&error)],
            remedy: "run it as a role that has outbox_operator (ops/roles.sql), or as the owner of the schema".to_owned(),
        }),
    }
}

/// A moment, and how long ago that is.
fn since(at: DateTime<Utc>, now: DateTime<Utc>) -> String {
    format!("{} ({})", at.format("%Y-%m-%d %H:%M:%S UTC"), span(now - at))
}

/// A time in its two largest units.
fn span(time: TimeDelta) -> String {
    let seconds = time.num_seconds().max(0);
    let (days, hours, minutes) = (seconds / 86400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min {} s", seconds % 60),
        (0, _, _) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_told_in_its_two_largest_units() {
        let told = [0, 59, 61, 7200, 90000].map(|seconds| span(TimeDelta::seconds(seconds)));
        assert_eq!(told, ["0 s", "59 s", "1 min 1 s", "2 h 0 min", "1 d 1 h"]);
    }

    #[test]
    fn what_is_critical_is_worst() {
        assert!(Severity::Critical > Severity::Warning && Severity::Warning > Severity::Note);
    }
}
