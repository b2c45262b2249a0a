//! Who has emitted and not committed?

use chrono::TimeDelta;
use diesel::sql_types::{BigInt, Bool, Integer, Nullable, Text};
use diesel_async::AsyncPgConnection;

use super::{Finding, Severity, span};
use crate::operation::{AdminError, begin_look, end, load};
use crate::statement::statement;

// Its events are not visible to anybody, but the lock that an INSERT takes on the log is.
const OPEN: &str = "\
SELECT a.pid, extract(epoch FROM clock_timestamp() - a.xact_start)::bigint, a.usename::text, a.application_name, a.state, left(a.query, 200)
FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'relation' AND l.relation = 'outbox.events'::regclass AND l.database = outbox.database_oid()
  AND l.mode = 'RowExclusiveLock' AND l.granted
  AND a.xact_start < clock_timestamp() - interval '5 s' AND a.pid <> pg_backend_pid()
ORDER BY a.xact_start LIMIT 10";

const PREPARED: &str = "\
SELECT p.gid, extract(epoch FROM clock_timestamp() - p.prepared)::bigint, p.owner::text
FROM pg_prepared_xacts p
JOIN pg_locks x ON x.locktype = 'transactionid' AND x.transactionid = p.transaction AND x.pid IS NULL
JOIN pg_locks l ON l.virtualtransaction = x.virtualtransaction AND l.pid IS NULL
WHERE p.database = current_database() AND l.locktype = 'relation' AND l.relation = 'outbox.events'::regclass
  AND l.mode = 'RowExclusiveLock' AND p.prepared < clock_timestamp() - interval '5 s'
ORDER BY p.prepared LIMIT 10";

const SEES_OTHERS: &str = "SELECT pg_has_role('pg_read_all_stats', 'USAGE')";

type OpenColumns =
    (Integer, BigInt, Nullable<Text>, Nullable<Text>, Nullable<Text>, Nullable<Text>);
type OpenRow = (i32, i64, Option<String>, Option<String>, Option<String>, Option<String>);
type PreparedRow = (String, i64, String);

pub(super) async fn examine(conn: &mut AsyncPgConnection) -> Result<Vec<Finding>, AdminError> {
    begin_look(conn).await?;
    let looked = async {
        let open: Vec<OpenRow> = load(conn, statement::<OpenColumns>(OPEN)).await?;
        let prepared: Vec<PreparedRow> =
            load(conn, statement::<(Text, BigInt, Text)>(PREPARED)).await?;
        let sees: Vec<bool> = load(conn, statement::<Bool>(SEES_OTHERS)).await?;
        Ok((open, prepared, sees == [true]))
    }
    .await;
    let (open, prepared, sees_others) = end(conn, looked).await?;
    let mut findings: Vec<_> = prepared.into_iter().map(prepared_transaction).collect();
    findings.extend(open.into_iter().map(open_transaction));
    if !sees_others {
        findings.push(Finding {
            name: "not-examined",
            severity: Severity::Note,
            summary: "this role does not see the transactions of others, so that an open one cannot be named".to_owned(),
            evidence: Vec::new(),
            remedy: "GRANT pg_monitor TO <this role>".to_owned(),
        });
    }
    Ok(findings)
}

fn open_transaction((pid, seconds, role, application, state, query): OpenRow) -> Finding {
    let age = span(TimeDelta::seconds(seconds));
    Finding {
        name: "open-transaction",
        severity: Severity::Warning,
        summary: format!(
            "process {pid} has emitted and not committed for {age}: its events wait for it"
        ),
        evidence: vec![
            format!(
                "role {}, application {:?}, {}",
                role.unwrap_or_default(),
                application.unwrap_or_default(),
                state.unwrap_or_default()
            ),
            format!("its last statement: {}", query.unwrap_or_default()),
        ],
        remedy: format!("SELECT pg_terminate_backend({pid})  -- rolls it back, its events with it"),
    }
}

fn prepared_transaction((gid, seconds, owner): PreparedRow) -> Finding {
    let age = span(TimeDelta::seconds(seconds));
    let quoted = gid.replace('\'', "''");
    Finding {
        name: "prepared-transaction",
        severity: Severity::Warning,
        summary: format!(
            "prepared transaction '{gid}' has emitted and waits for its end for {age}: its events wait for it"
        ),
        evidence: vec![format!(
            "prepared by role {owner}; no session holds it, so that it stays until somebody ends it"
        )],
        remedy: format!("COMMIT PREPARED '{quoted}'  -- or ROLLBACK PREPARED '{quoted}'"),
    }
}
