//! Is a subscription asked for topics that nobody emits to?

use diesel::sql_types::{Array, Text};
use diesel_async::AsyncPgConnection;

use super::{Finding, Severity};
use crate::operation::{AdminError, begin_look, end, load};
use crate::statement::statement;

const UNMATCHED: &str = "\
WITH newest AS MATERIALIZED (
    SELECT e.topic FROM outbox.events e ORDER BY e.seq DESC LIMIT 1000
)
SELECT s.name, f.topics, ARRAY(SELECT DISTINCT n.topic FROM newest n ORDER BY 1 LIMIT 10)
FROM outbox.subscriptions s
CROSS JOIN LATERAL (SELECT f.topics FROM outbox.topic_filters f WHERE f.subscription = s.name
                    ORDER BY f.from_tick DESC LIMIT 1) f
WHERE f.topics IS NOT NULL AND EXISTS (SELECT FROM newest)
  AND NOT EXISTS (SELECT FROM newest n WHERE n.topic = ANY (f.topics))
ORDER BY s.name";

type Row = (String, Vec<String>, Vec<String>);

pub(super) async fn examine(conn: &mut AsyncPgConnection) -> Result<Vec<Finding>, AdminError> {
    begin_look(conn).await?;
    let unmatched = statement::<(Text, Array<Text>, Array<Text>)>(UNMATCHED);
    let unmatched = load(conn, unmatched).await.map_err(AdminError::from);
    let unmatched: Vec<Row> = end(conn, unmatched).await?;
    Ok(unmatched.iter().map(finding).collect())
}

fn finding((name, wanted, emitted): &Row) -> Finding {
    Finding {
        name: "topics-match-nothing",
        severity: Severity::Note,
        summary: format!(
            "subscription {name:?} gets only topic {}, and none of the newest 1,000 events has it",
            wanted.join(", ")
        ),
        evidence: vec![format!("they have topic {}", emitted.join(", "))],
        remedy: format!("outbox subscriptions topics {name} TOPIC…  # if that is a typing error"),
    }
}
