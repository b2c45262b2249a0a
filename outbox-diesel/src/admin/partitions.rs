//! The log's partitions.

use diesel::Queryable;
use diesel::sql_types::{BigInt, Bool, Integer, Nullable, Text};
use diesel_async::AsyncPgConnection;

use crate::operation::{AdminError, begin, begin_look, end, load};
use crate::partition::{KEEP_AHEAD, Step};
use crate::statement::statement;

/// A partition of the log.
#[derive(Debug, Clone, PartialEq, Eq, Queryable)]
#[non_exhaustive]
pub struct Partition {
    /// The table's name in the schema `outbox`.
    pub name: String,
    /// The first `seq` that belongs here; None: the default partition.
    pub from_seq: Option<i64>,
    /// The first `seq` above it.
    pub to_seq: Option<i64>,
    /// Rows, estimated.
    pub rows: i64,
    /// Size with indexes.
    pub bytes: i64,
    /// `ahead` of the sequence; `current`: being written, or not yet passed by all subscriptions;
    /// `delivered`; `retired`: empty, waiting to be dropped; or `default`.
    pub state: String,
}

const PARTITIONS: &str = "SELECT leaf, from_seq, to_seq, rows, bytes, state FROM outbox.partitions";

/// Lists the log's partitions in the order of their events.
///
/// # Errors
/// What the database says. Needs the rights of an operator.
pub async fn partitions(conn: &mut AsyncPgConnection) -> Result<Vec<Partition>, AdminError> {
    type Columns = (Text, Nullable<BigInt>, Nullable<BigInt>, BigInt, BigInt, Text);
    begin_look(conn).await?;
    let partitions = load(conn, statement::<Columns>(PARTITIONS)).await.map_err(AdminError::from);
    end(conn, partitions).await
}

/// Steps at most: each makes one partition.
const STEPS: usize = 64;

/// Makes the partitions that the next two days need, as relays do by themselves, and returns how
/// many. It waits for no lock longer than 200 ms, so that no emit does.
///
/// # Errors
/// [`NoPartition`](AdminError::NoPartition) with what stands in the way, or what the database says.
pub async fn extend_partitions(conn: &mut AsyncPgConnection) -> Result<u32, AdminError> {
    let mut made = 0;
    for _ in 0..STEPS {
        begin(conn).await?;
        let step = load(conn, statement::<(Integer, Bool, Nullable<Text>)>(KEEP_AHEAD)).await;
        // What the step remembers of its failure counts too.
        let steps: Vec<Step> = end(conn, step.map_err(AdminError::from)).await?;
        let Some(step) = steps.into_iter().next() else { break };
        made += u32::try_from(step.made).unwrap_or(0);
        if let Some(problem) = step.problem {
            return Err(AdminError::NoPartition(problem));
        }
        if !step.again {
            break;
        }
    }
    Ok(made)
}
