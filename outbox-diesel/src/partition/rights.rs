//! What a role lacks to look after partitions. Asked before, so that a relay without rights does
//! not fill the server's log with errors.

use diesel::sql_types::Text;

use crate::session::{Mode, Session, SessionError};
use crate::statement::statement;

const MISSING: &str = "\
SELECT f.proname::text, format('GRANT EXECUTE ON FUNCTION %s TO %I', f.oid::regprocedure, current_user)
FROM pg_proc f
WHERE f.pronamespace = 'outbox'::regnamespace
  AND f.proname IN ('keep_partitions_ahead', 'retire_partition', 'drop_retired_partition', 'purge_events',
                    'purge_default_partition', 'delete_dedup_keys', 'delete_records', 'delete_ticks',
                    'passed_seq')
  AND NOT has_function_privilege(f.oid, 'EXECUTE')
ORDER BY f.proname";

/// Functions that this role may not execute.
#[derive(Debug, Default)]
pub(crate) struct MissingRights(Vec<(String, String)>);

impl MissingRights {
    /// Whether the role may execute this function.
    pub(crate) fn allow(&self, function: &str) -> bool {
        self.0.iter().all(|(missing, _)| missing != function)
    }

    /// What an administrator can run; None if nothing is missing.
    pub(crate) fn remedy(&self) -> Option<String> {
        let grants: Vec<_> = self.0.iter().map(|(_, grant)| grant.as_str()).collect();
        (!grants.is_empty()).then(|| grants.join("; "))
    }
}

/// Asks what this role may not do.
pub(crate) async fn missing_rights(session: &mut Session) -> Result<MissingRights, SessionError> {
    session.load(Mode::Read, statement::<(Text, Text)>(MISSING)).await.map(MissingRights)
}
