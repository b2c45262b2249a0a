//! Do clocks agree? They decide leases and retry times, and nothing else.

use chrono::{DateTime, TimeDelta, Utc};
use diesel::sql_types::{BigInt, Nullable, Timestamptz};
use diesel_async::AsyncPgConnection;

use super::{Finding, Severity, span};
use crate::operation::{AdminError, begin_look, end, load};
use crate::statement::statement;

const CLOCK: &str = "\
SELECT clock_timestamp(),
       (SELECT max(t.tick) FROM outbox.ticks t) - (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
       (SELECT (extract(epoch FROM max(c.leased_until) - clock_timestamp()) * 1000000)::bigint FROM outbox.cursors c
        WHERE isfinite(c.leased_until) AND c.leased_until > clock_timestamp() + interval '5 min')";

/// What is no more than a slow network.
const TOLERANCE: TimeDelta = TimeDelta::seconds(5);

pub(super) async fn examine(conn: &mut AsyncPgConnection) -> Result<Vec<Finding>, AdminError> {
    type Columns = (Timestamptz, Nullable<BigInt>, Nullable<BigInt>);
    begin_look(conn).await?;
    let before = Utc::now();
    let told = load(conn, statement::<Columns>(CLOCK)).await.map_err(AdminError::from);
    let after = Utc::now();
    let told: Vec<(DateTime<Utc>, Option<i64>, Option<i64>)> = end(conn, told).await?;
    let Some((theirs, tick_ahead, lease_ahead)) = told.into_iter().next() else {
        return Ok(Vec::new());
    };
    let ahead = |micros: Option<i64>| micros.map_or(TimeDelta::zero(), TimeDelta::microseconds);
    let mut findings = Vec::new();
    findings.extend(set_back(ahead(tick_ahead), ahead(lease_ahead)));
    // Theirs was read between our two.
    let skew =
        if theirs > after { theirs - after } else { (before - theirs).max(TimeDelta::zero()) };
    findings.extend(skewed(skew, theirs > after));
    Ok(findings)
}

fn set_back(tick: TimeDelta, lease: TimeDelta) -> Option<Finding> {
    let by = tick.max(lease);
    if by <= TOLERANCE {
        return None;
    }
    Some(Finding {
        name: "clock-set-back",
        severity: Severity::Warning,
        summary: format!("the database server's clock was set back: the outbox has seen a time {} from now", span(by)),
        evidence: vec![
            "leases and retries that were written before are due that much later; nothing else goes by the clock".to_owned(),
        ],
        remedy: "chronyc tracking  # on the database server: let NTP set the clock".to_owned(),
    })
}

fn skewed(skew: TimeDelta, is_behind: bool) -> Option<Finding> {
    if skew <= TOLERANCE {
        return None;
    }
    let direction = if is_behind { "behind" } else { "ahead of" };
    Some(Finding {
        name: "clock-skew",
        severity: Severity::Warning,
        summary: format!(
            "this machine's clock is {} {direction} the database server's",
            span(skew)
        ),
        evidence: vec![
            "event ids tell the time of the machine that emits, and finding an event goes by it"
                .to_owned(),
        ],
        remedy: "chronyc tracking  # on both machines: let NTP set the clocks".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_answer_is_no_skew_and_hours_are() {
        assert!(skewed(TimeDelta::seconds(4), true).is_none());
        let finding = skewed(TimeDelta::hours(2), true).expect("two hours");
        assert!(finding.summary.contains("2 h 0 min behind"), "{}", finding.summary);
    }
}
