//! Does anybody keep the server from forgetting notifications?

use diesel::sql_types::Double;
use diesel_async::AsyncPgConnection;

use super::{Finding, Severity};
use crate::operation::{AdminError, begin_look, end, load};
use crate::statement::statement;

/// Of 8 GiB by default, and of next to nothing where all is well.
const MUCH: f64 = 0.01;
/// From here on the server itself complains.
const TOO_MUCH: f64 = 0.5;

const USAGE: &str = "SELECT pg_notification_queue_usage()";

pub(super) async fn examine(conn: &mut AsyncPgConnection) -> Result<Vec<Finding>, AdminError> {
    begin_look(conn).await?;
    let usage: Result<Vec<f64>, AdminError> =
        load(conn, statement::<Double>(USAGE)).await.map_err(AdminError::from);
    let usage = end(conn, usage).await?;
    Ok(usage.into_iter().filter(|usage| *usage >= MUCH).map(queue).collect())
}

fn queue(usage: f64) -> Finding {
    Finding {
        name: "notification-queue",
        severity: if usage < TOO_MUCH { Severity::Warning } else { Severity::Critical },
        summary: format!(
            "the server's queue of notifications is {:.0} % full: once it is full, every commit that notifies fails",
            (usage * 100.0).floor()
        ),
        evidence: vec![String::from(
            "a session that has run LISTEN stays in a transaction: what is notified meanwhile cannot be forgotten. \
             Emits notify while relays with Wake::Listen sleep",
        )],
        remedy: String::from(
            "SELECT pid, datname, usename, xact_start, query FROM pg_stat_activity \
             WHERE state LIKE 'idle in transaction%' ORDER BY xact_start  \
             -- and pg_terminate_backend(pid) for the one that listens",
        ),
    }
}
