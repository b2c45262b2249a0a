//! Times and durations as people write and read them.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

/// Reads `10s`, `5m`, `7days`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|error| format!("{error}; write 10s, 5m or 7days"))
}

/// Reads `2026-11-30T12:00:00Z`, or a duration: so long ago.
pub(crate) fn parse_time(text: &str) -> Result<DateTime<Utc>, String> {
    if let Ok(time) = DateTime::parse_from_rfc3339(text) {
        return Ok(time.with_timezone(&Utc));
    }
    let ago = humantime::parse_duration(text).ok().and_then(|ago| TimeDelta::from_std(ago).ok());
    ago.and_then(|ago| Utc::now().checked_sub_signed(ago))
        .ok_or_else(|| "write 2026-11-30T12:00:00Z, or 2h for two hours ago".to_owned())
}

/// How long ago that is, to the second.
pub(crate) fn ago(at: DateTime<Utc>, now: DateTime<Utc>) -> String {
    span(now - at)
}

/// A time span to the second: `1h 2m 3s`.
pub(crate) fn span(time: TimeDelta) -> String {
    let seconds = u64::try_from(time.num_seconds()).unwrap_or(0);
    humantime::format_duration(Duration::from_secs(seconds)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_a_date_or_so_long_ago() {
        let time = parse_time("2026-11-30T13:00:00+01:00").unwrap();
        assert_eq!(time.to_rfc3339(), "2026-11-30T12:00:00+00:00");
        let before = Utc::now();
        let hours = before - parse_time("2h").unwrap();
        assert!((119..=120).contains(&hours.num_minutes()), "{hours}");
        assert!(parse_time("yesterday").unwrap_err().contains("2h"));
    }
}
