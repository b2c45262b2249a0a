//! Collects the rows of a read in a chunk, byte by byte as they came.

use chrono::{DateTime, Utc};
use diesel::deserialize;
use diesel::pg::PgValue;
use diesel::result::Error;
use diesel::row::{Field as _, Row as _};
use diesel::sql_types::{BigInt, Json, Nullable, SmallInt, Text, Timestamptz, Uuid as SqlUuid};
use uuid::Uuid;

use crate::message::{Chunk, Fields};
use crate::session::{Mode, Row, Session, SessionError};
use crate::statement::{Statement, Walk};

/// An event, and what a read tells of it; here what [`Collect::size`] becomes.
pub(crate) type EventColumns<Told = BigInt> = (
    BigInt,
    SmallInt,
    SqlUuid,
    Text,
    Text,
    Text,
    Text,
    SmallInt,
    Nullable<Text>,
    Json,
    Json,
    Timestamptz,
    Told,
);

/// Fills a chunk.
pub(super) struct Collect<'a> {
    pub(super) tick: i64,
    pub(super) chunk: &'a mut Chunk,
    /// What the last row says of it.
    pub(super) size: i64,
    /// It ends before an event that was not sent.
    pub(super) is_cut: bool,
}

impl Collect<'_> {
    /// Takes the rows of a query.
    pub(super) async fn stream<Binds: Walk + Send + 'static>(
        &mut self,
        session: &mut Session,
        query: Statement<EventColumns, Binds>,
    ) -> Result<(), SessionError> {
        session
            .stream(Mode::Read, query, |row| self.push(&row).map_err(Error::DeserializationError))
            .await
    }
}

impl Collect<'_> {
    /// Copies a row's bytes; nothing is allocated per event.
    fn push(&mut self, row: &Row) -> deserialize::Result<()> {
        if self.is_cut {
            return Ok(());
        }
        let fields: [Option<_>; COLUMNS] = std::array::from_fn(|nth| row.get(nth));
        let mut values = fields.iter().map(|field| field.as_ref().and_then(|field| field.value()));
        let mut next = || values.next().flatten();

        let seq = i64::from_be_bytes(fixed(next())?);
        let shard = u8::try_from(i16::from_be_bytes(fixed(next())?))?;
        let id = Uuid::from_bytes(fixed(next())?);
        let topic = next().ok_or(MISSING)?;
        let aggregate_type = next().ok_or(MISSING)?;
        let aggregate_id = next().ok_or(MISSING)?;
        let event_type = next().ok_or(MISSING)?;
        let event_version = i16::from_be_bytes(fixed(next())?);
        let dedup_key = next();
        // NULL in no event: it is beyond its share.
        let (Some(payload), Some(headers)) = (next(), next()) else {
            self.is_cut = true;
            return Ok(());
        };
        let created_at = i64::from_be_bytes(fixed(next())?);
        self.size = i64::from_be_bytes(fixed(next())?);

        self.chunk.push(Fields {
            tick: self.tick,
            seq,
            shard,
            id,
            topic: str::from_utf8(topic.as_bytes())?,
            aggregate_type: str::from_utf8(aggregate_type.as_bytes())?,
            aggregate_id: str::from_utf8(aggregate_id.as_bytes())?,
            event_type: str::from_utf8(event_type.as_bytes())?,
            event_version,
            dedup_key: match &dedup_key {
                Some(key) => Some(str::from_utf8(key.as_bytes())?),
                None => None,
            },
            payload: str::from_utf8(payload.as_bytes())?,
            headers: str::from_utf8(headers.as_bytes())?,
            created_at: timestamp(created_at),
        });
        Ok(())
    }
}

const COLUMNS: usize = 13;
const MISSING: &str = "a column of outbox.events is missing";

fn fixed<const N: usize>(value: Option<PgValue<'_>>) -> deserialize::Result<[u8; N]> {
    Ok(value.ok_or(MISSING)?.as_bytes().try_into()?)
}

/// PostgreSQL counts microseconds from 2000-01-01. What no calendar has (`infinity` by plain SQL)
/// must not stop the log, so it becomes the first or the last moment that both sides can hold: a
/// parked event's time goes back to PostgreSQL.
fn timestamp(micros: i64) -> DateTime<Utc> {
    const UNIX_2000: i64 = 946_684_800_000_000;
    /// 4713-11-24 BC, PostgreSQL's first day.
    const FIRST: i64 = -211_813_488_000_000_000;
    micros
        .max(FIRST)
        .checked_add(UNIX_2000)
        .and_then(DateTime::from_timestamp_micros)
        .unwrap_or(DateTime::<Utc>::MAX_UTC)
}
