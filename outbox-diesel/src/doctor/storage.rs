//! Is there room for events, and does anybody clean up?

use chrono::{DateTime, Utc};
use diesel::Queryable;
use diesel::sql_types::{Array, BigInt, Bool, Integer, Nullable, Text, Timestamptz};
use diesel_async::AsyncPgConnection;

use super::{Finding, Severity, span};
use crate::operation::{AdminError, begin_look, end, load};
use crate::statement::statement;

const ROOM: &str = "\
SELECT next.seq,
       (SELECT max(l.to_seq) FROM outbox.leaves l),
       EXISTS (SELECT FROM outbox.leaves l WHERE l.from_seq <= next.seq AND l.to_seq > next.seq),
       EXISTS (SELECT FROM outbox.leaves l WHERE l.from_seq > next.seq),
       (SELECT e.seq FROM outbox.events_default e ORDER BY e.seq LIMIT 1),
       (SELECT e.seq FROM outbox.events_default e ORDER BY e.seq DESC LIMIT 1),
       u.failed, CASE WHEN isfinite(u.next_try_at) THEN u.next_try_at END, clock_timestamp()
FROM outbox.upkeep u CROSS JOIN (SELECT pg_sequence_last_value('outbox.event_seq') + 1 AS seq) next";

type RoomColumns = (
    Nullable<BigInt>,
    Nullable<BigInt>,
    Bool,
    Bool,
    Nullable<BigInt>,
    Nullable<BigInt>,
    Integer,
    Nullable<Timestamptz>,
    Timestamptz,
);

#[derive(Queryable)]
struct Room {
    next_seq: Option<i64>,
    end: Option<i64>,
    has_current: bool,
    has_ahead: bool,
    lowest_stray: Option<i64>,
    highest_stray: Option<i64>,
    failed: i32,
    next_try_at: Option<DateTime<Utc>>,
    now: DateTime<Utc>,
}

const VACUUM: &str = "\
SELECT current_setting('autovacuum')::boolean, current_setting('track_counts')::boolean,
       ARRAY(SELECT c.oid::regclass::text FROM pg_class c
             WHERE c.relnamespace = 'outbox'::regnamespace
               AND EXISTS (SELECT FROM unnest(c.reloptions) o (setting) WHERE o.setting ~* '^autovacuum_enabled=(false|off|no|0)$')
             ORDER BY 1)";

pub(super) async fn examine(conn: &mut AsyncPgConnection) -> Result<Vec<Finding>, AdminError> {
    begin_look(conn).await?;
    let looked = async {
        let room: Vec<Room> = load(conn, statement::<RoomColumns>(ROOM)).await?;
        let vacuum: Vec<(bool, bool, Vec<String>)> =
            load(conn, statement::<(Bool, Bool, Array<Text>)>(VACUUM)).await?;
        Ok((room, vacuum))
    }
    .await;
    let (room, vacuum) = end(conn, looked).await?;
    let mut findings = Vec::new();
    for room in room {
        findings.extend(no_partition(&room));
        findings.extend(strays(&room));
    }
    for (is_on, counts, tables) in vacuum {
        findings.extend(no_vacuum(is_on, counts, &tables));
    }
    Ok(findings)
}

fn no_partition(room: &Room) -> Option<Finding> {
    if room.has_ahead {
        return None;
    }
    let left = room.end.zip(room.next_seq).map_or(0, |(end, next)| (end - next).max(0));
    let summary = if room.has_current {
        format!("no partition is ahead of the sequence: the last one has room for {left} events")
    } else {
        "no partition is left: events go to the default partition, and are delivered from there"
            .to_owned()
    };
    let mut evidence = vec![format!(
        "the next event gets seq {}, the last partition ends at {}",
        room.next_seq.unwrap_or(0),
        room.end.unwrap_or(0)
    )];
    if room.failed > 0 {
        let next = room
            .next_try_at
            .map_or_else(|| "soon".to_owned(), |at| format!("in {}", span(at - room.now)));
        evidence.push(format!(
            "relays have failed to make one {} times; the next try is {next}",
            room.failed
        ));
    } else {
        evidence.push("relays make them: none is running, or its role lacks rights".to_owned());
    }
    Some(Finding {
        name: "no-partition-ahead",
        severity: Severity::Warning,
        summary,
        evidence,
        remedy: "outbox partitions extend".to_owned(),
    })
}

fn strays(room: &Room) -> Option<Finding> {
    let (lowest, highest) = room.lowest_stray.zip(room.highest_stray)?;
    Some(Finding {
        name: "default-partition-not-empty",
        severity: Severity::Warning,
        summary: "events lie in the default partition: partitions were not made in time".to_owned(),
        evidence: vec![
            format!("seq {lowest} to {highest}"),
            "they are delivered like any other, are never moved, and go when the retention lets them".to_owned(),
        ],
        remedy: "outbox partitions extend  # and see in the relays' logs why they could not".to_owned(),
    })
}

fn no_vacuum(is_on: bool, counts: bool, tables: &[String]) -> Option<Finding> {
    let (summary, remedy) = if !is_on {
        (
            "autovacuum is off: cursors bloat, and every settle gets slower".to_owned(),
            "ALTER SYSTEM SET autovacuum = on; SELECT pg_reload_conf()".to_owned(),
        )
    } else if !counts {
        (
            "track_counts is off, and without it autovacuum does nothing".to_owned(),
            "ALTER SYSTEM SET track_counts = on; SELECT pg_reload_conf()".to_owned(),
        )
    } else {
        let first = tables.first()?;
        (
            format!("autovacuum is off for {}", tables.join(", ")),
            format!("ALTER TABLE {first} RESET (autovacuum_enabled)"),
        )
    };
    Some(Finding {
        name: "autovacuum-off",
        severity: Severity::Warning,
        summary,
        evidence: vec![
            "cursors are updated ten times a second per shard; only vacuum takes the old rows away"
                .to_owned(),
        ],
        remedy,
    })
}
