//! May the roles that relays work as do what relays do?

use std::collections::BTreeMap;

use diesel::sql_types::{Array, Bool, Text};
use diesel_async::AsyncPgConnection;

use super::{Finding, Severity};
use crate::admin::Overview;
use crate::operation::{AdminError, begin_look, end, load};
use crate::statement::statement;

// What ops/roles.sql grants to a relay; the last ones are for upkeep, and delivery goes on without.
const MISSING: &str = "\
SELECT r.rolname::text, w.what, w.is_upkeep
FROM pg_roles r
CROSS JOIN LATERAL (
    SELECT 'USAGE ON SCHEMA outbox' AS what, false AS is_upkeep
    WHERE NOT has_schema_privilege(r.oid, 'outbox', 'USAGE')
    UNION ALL
    SELECT t.privilege || ' ON ' || t.name, false
    FROM (VALUES ('outbox.migrations', 'SELECT'), ('outbox.meta', 'SELECT'), ('outbox.events', 'SELECT'),
                 ('outbox.ticks', 'SELECT'), ('outbox.ticks', 'INSERT'), ('outbox.subscriptions', 'SELECT'),
                 ('outbox.topic_filters', 'SELECT'), ('outbox.cursors', 'SELECT'), ('outbox.cursors', 'UPDATE'),
                 ('outbox.relays', 'SELECT'), ('outbox.relays', 'INSERT'), ('outbox.relays', 'UPDATE'), ('outbox.relays', 'DELETE'),
                 ('outbox.parked', 'SELECT'), ('outbox.parked', 'INSERT'), ('outbox.parked', 'UPDATE'), ('outbox.parked', 'DELETE'),
                 ('outbox.revisions', 'SELECT'), ('outbox.discarded', 'SELECT'), ('outbox.replays', 'SELECT'),
                 ('outbox.replay_cursors', 'SELECT'), ('outbox.replay_cursors', 'UPDATE')) AS t (name, privilege)
    WHERE NOT has_table_privilege(r.oid, t.name, t.privilege)
    UNION ALL
    SELECT 'SELECT ON SEQUENCE outbox.event_seq', false
    WHERE NOT has_sequence_privilege(r.oid, 'outbox.event_seq', 'USAGE, SELECT')
    UNION ALL
    SELECT 'UPDATE (' || c.name || ') ON ' || c.of, false
    FROM (VALUES ('outbox.subscriptions', 'generation'), ('outbox.replays', 'finished_at')) AS c (of, name)
    WHERE NOT has_column_privilege(r.oid, c.of, c.name, 'UPDATE')
    UNION ALL
    SELECT 'EXECUTE ON FUNCTION ' || f.oid::regprocedure, true
    FROM pg_proc f
    WHERE f.pronamespace = 'outbox'::regnamespace
      AND f.proname IN ('keep_partitions_ahead', 'retire_partition', 'drop_retired_partition', 'purge_events',
                        'purge_default_partition', 'delete_dedup_keys', 'delete_ticks', 'passed_seq')
      AND NOT has_function_privilege(r.oid, f.oid, 'EXECUTE')
) w
WHERE r.rolname = ANY ($1::text[])
   OR ($2::boolean AND r.rolname = current_user
       AND (has_table_privilege('outbox.relays', 'INSERT') OR NOT has_table_privilege('outbox.discarded', 'INSERT')))
ORDER BY 1, w.is_upkeep, w.what";

type Row = (String, String, bool);

/// Of the roles of live relays; where none is alive, of our own role too: perhaps a relay is to work
/// as it, and cannot. Unless it is an operator's, by what it may do.
pub(super) async fn examine(
    conn: &mut AsyncPgConnection,
    overview: Option<&Overview>,
) -> Result<Vec<Finding>, AdminError> {
    let live = overview.into_iter().flat_map(|o| &o.relays).filter(|relay| relay.is_live);
    let roles: Vec<String> = live.map(|relay| relay.role.clone()).collect();
    let own_too = roles.is_empty();
    begin_look(conn).await?;
    let missing = statement::<(Text, Text, Bool)>(MISSING)
        .bind::<Array<Text>, _>(roles)
        .bind::<Bool, _>(own_too);
    let missing = load(conn, missing).await.map_err(AdminError::from);
    let rows: Vec<Row> = end(conn, missing).await?;
    let mut by_role: BTreeMap<String, Vec<(String, bool)>> = BTreeMap::new();
    for (role, what, is_upkeep) in rows {
        by_role.entry(role).or_default().push((what, is_upkeep));
    }
    Ok(by_role.into_iter().map(|(role, missing)| finding(&role, &missing)).collect())
}

fn finding(role: &str, missing: &[(String, bool)]) -> Finding {
    let only_upkeep = missing.iter().all(|(_, is_upkeep)| *is_upkeep);
    let quoted = format!("\"{}\"", role.replace('"', "\"\""));
    Finding {
        name: "missing-rights",
        severity: if only_upkeep { Severity::Warning } else { Severity::Critical },
        summary: if only_upkeep {
            format!(
                "relays that work as role {role} may not look after partitions; they deliver all the same"
            )
        } else {
            format!("role {role} may not do what a relay does")
        },
        evidence: missing.iter().map(|(what, _)| format!("lacks {what}")).collect(),
        remedy: format!(
            "psql --file ops/roles.sql \"$DATABASE_URL\" && psql --command 'GRANT outbox_relay TO {quoted}' \"$DATABASE_URL\""
        ),
    }
}
