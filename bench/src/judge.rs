//! [`Judge`]: says of every run whether each event arrived once and in order.

use std::collections::HashMap;

/// Sees events as they arrive. Each aggregate counts its events in the payload's `v`, from one, so
/// what is missing, repeated or out of order shows without a copy of the log.
#[derive(Debug, Default)]
pub(crate) struct Judge {
    /// How far each aggregate has come.
    versions: HashMap<String, u64>,
    events: u64,
    wrong: u64,
}

impl Judge {
    /// Sees an event.
    pub(crate) fn see(&mut self, aggregate: &str, payload: &str) {
        let version = version(payload);
        self.events += 1;
        // Only the first event of an aggregate allocates.
        if let Some(last) = self.versions.get_mut(aggregate) {
            self.wrong += u64::from(version != Some(*last + 1));
            *last = version.unwrap_or(*last);
        } else {
            self.wrong += u64::from(version != Some(1));
            self.versions.insert(aggregate.to_owned(), version.unwrap_or(0));
        }
    }

    /// How many were seen.
    pub(crate) fn events(&self) -> u64 {
        self.events
    }

    /// An error unless these many were seen, each once and in the order of its aggregate.
    pub(crate) fn verdict(&self, events: u64) -> Result<(), String> {
        if self.events == events && self.wrong == 0 {
            return Ok(());
        }
        let Self { events: seen, wrong, .. } = self;
        Err(format!("{events} events were emitted, {seen} arrived, {wrong} of them not in order"))
    }
}

/// The number behind `"v":`, found without parsing the rest.
fn version(payload: &str) -> Option<u64> {
    let (_, rest) = payload.split_once("\"v\":")?;
    let rest = rest.trim_start();
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(events: &[(&str, u64)]) -> Judge {
        let mut judge = Judge::default();
        for (aggregate, version) in events {
            judge.see(aggregate, &format!("{{\"v\": {version}, \"fill\":\"\"}}"));
        }
        judge
    }

    #[test]
    fn every_fault_is_seen() {
        assert_eq!(seen(&[("a", 1), ("b", 1), ("a", 2)]).verdict(3), Ok(()));
        assert!(seen(&[("a", 1), ("b", 1)]).verdict(3).is_err());
        assert!(seen(&[("a", 1), ("b", 1), ("b", 1)]).verdict(3).is_err());
        assert!(seen(&[("a", 2), ("a", 1), ("b", 1)]).verdict(3).is_err());
        assert!(seen(&[("a", 1), ("a", 3)]).verdict(2).is_err());
        assert!(seen(&[("b", 2)]).verdict(1).is_err());
    }
}
