//! PostgreSQL's transaction ids and snapshots, in their binary form.

use std::io::Write;

use diesel::deserialize::{self, FromSql, FromSqlRow};
use diesel::expression::AsExpression;
use diesel::pg::{Pg, PgValue};
use diesel::serialize::{self, IsNull, Output, ToSql};

/// SQL types that diesel does not know.
pub mod sql_types {
    use diesel::query_builder::QueryId;
    use diesel::sql_types::SqlType;

    /// `xid8`: a transaction id that does not wrap around.
    #[derive(Debug, Clone, Copy, QueryId, SqlType)]
    #[diesel(postgres_type(oid = 5069, array_oid = 271))]
    pub struct Xid8;

    /// `pg_snapshot`: which transactions had ended.
    #[derive(Debug, Clone, Copy, QueryId, SqlType)]
    #[diesel(postgres_type(oid = 5038, array_oid = 5039))]
    pub struct PgSnapshot;
}

/// A transaction id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, FromSqlRow, AsExpression)]
#[diesel(sql_type = sql_types::Xid8)]
pub struct Xid(pub u64);

/// Which transactions a point in time sees as ended.
#[derive(Debug, Clone, PartialEq, Eq, FromSqlRow, AsExpression)]
#[diesel(sql_type = sql_types::PgSnapshot)]
pub struct Snapshot {
    xmin: Xid,
    xmax: Xid,
    /// Ascending.
    in_progress: Vec<Xid>,
}

#[cfg(feature = "relay")]
impl Snapshot {
    /// The latest ended transaction plus one: those from here on are in no list.
    pub(crate) fn xmax(&self) -> Xid {
        self.xmax
    }

    /// The oldest transaction that was in progress.
    pub(crate) fn xmin(&self) -> Xid {
        self.xmin
    }

    /// Transactions listed as in progress, ascending.
    pub(crate) fn in_progress(&self) -> &[Xid] {
        &self.in_progress
    }

    /// Whether the transaction had ended: `pg_visible_in_snapshot`.
    pub(crate) fn sees(&self, xid: Xid) -> bool {
        xid < self.xmin || (xid < self.xmax && self.in_progress.binary_search(&xid).is_err())
    }
}

impl FromSql<sql_types::Xid8, Pg> for Xid {
    fn from_sql(value: PgValue<'_>) -> deserialize::Result<Self> {
        Ok(Self(u64::from_be_bytes(value.as_bytes().try_into()?)))
    }
}

impl ToSql<sql_types::Xid8, Pg> for Xid {
    fn to_sql<'b>(&'b self, out: &mut Output<'b, '_, Pg>) -> serialize::Result {
        out.write_all(&self.0.to_be_bytes())?;
        Ok(IsNull::No)
    }
}

// The wire form: number of transactions in progress, xmin, xmax, then those in progress.
impl FromSql<sql_types::PgSnapshot, Pg> for Snapshot {
    fn from_sql(value: PgValue<'_>) -> deserialize::Result<Self> {
        let (_count, xids) =
            value.as_bytes().split_at_checked(4).ok_or("a snapshot starts with a count")?;
        let (xids, []) = xids.as_chunks::<8>() else {
            return Err("a snapshot holds whole transaction ids".into());
        };
        let mut xids = xids.iter().map(|bytes| Xid(u64::from_be_bytes(*bytes)));
        let (Some(xmin), Some(xmax)) = (xids.next(), xids.next()) else {
            return Err("a snapshot holds xmin and xmax".into());
        };
        Ok(Self { xmin, xmax, in_progress: xids.collect() })
    }
}

impl ToSql<sql_types::PgSnapshot, Pg> for Snapshot {
    fn to_sql<'b>(&'b self, out: &mut Output<'b, '_, Pg>) -> serialize::Result {
        out.write_all(&i32::try_from(self.in_progress.len())?.to_be_bytes())?;
        for xid in [&self.xmin, &self.xmax].into_iter().chain(&self.in_progress) {
            out.write_all(&xid.0.to_be_bytes())?;
        }
        Ok(IsNull::No)
    }
}

#[cfg(all(test, feature = "relay"))]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_sees_what_had_ended() {
        let snapshot =
            Snapshot { xmin: Xid(10), xmax: Xid(20), in_progress: vec![Xid(10), Xid(15)] };
        let seen = |xid| snapshot.sees(Xid(xid));
        assert!(seen(9) && seen(11) && seen(19));
        assert!(!seen(10) && !seen(15) && !seen(20) && !seen(21));
    }
}
