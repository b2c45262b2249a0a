//! [`Report`]: what a run came to.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

/// What a run came to. It serializes to the line that a run ends with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Events that committed.
    pub emitted: usize,
    /// Entries in Redis.
    pub in_redis: usize,
    /// Committed, and not in Redis.
    pub lost: usize,
    /// In Redis more than once, or though they never committed.
    pub duplicated: usize,
    /// In Redis before an earlier event of their aggregate.
    pub reordered: usize,
    /// Dead letters.
    pub dead: i64,
    /// The longest time between a commit and its arrival.
    pub max_stall_ms: u64,
    /// What the stall may be at most.
    #[serde(skip)]
    pub limit: Duration,
    /// What it says in words.
    #[serde(skip)]
    pub remarks: Vec<String>,
}

impl Report {
    /// Whether all is as promised.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        let stall = Duration::from_millis(self.max_stall_ms);
        let faults = (self.lost, self.duplicated, self.reordered, self.dead);
        self.emitted > 0 && faults == (0, 0, 0, 0) && stall <= self.limit
    }

    /// One line of JSON.
    #[must_use]
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("numbers can be written as JSON")
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for remark in &self.remarks {
            writeln!(f, "{remark}")?;
        }
        let verdict = if self.is_clean() { "all is as promised" } else { "NOT as promised" };
        write!(f, "{verdict}; the longest stall may be {} ms", self.limit.as_millis())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_clean_only_without_any_fault_and_within_its_limit() {
        let clean = Report {
            emitted: 1,
            in_redis: 1,
            lost: 0,
            duplicated: 0,
            reordered: 0,
            dead: 0,
            max_stall_ms: 1000,
            limit: Duration::from_secs(1),
            remarks: Vec::new(),
        };
        assert!(clean.is_clean());
        assert!(!Report { emitted: 0, ..clean.clone() }.is_clean());
        assert!(!Report { lost: 1, ..clean.clone() }.is_clean());
        assert!(!Report { duplicated: 1, ..clean.clone() }.is_clean());
        assert!(!Report { reordered: 1, ..clean.clone() }.is_clean());
        assert!(!Report { dead: 1, ..clean.clone() }.is_clean());
        assert!(!Report { max_stall_ms: 1001, ..clean.clone() }.is_clean());
        assert_eq!(
            clean.json(),
            r#"{"emitted":1,"in_redis":1,"lost":0,"duplicated":0,"reordered":0,"dead":0,"max_stall_ms":1000}"#
        );
    }
}
