//! Says whether each event came once, and in the order of its aggregate.

use std::collections::HashMap;

use crate::Changed;

#[derive(Debug, Default)]
pub struct Judge {
    versions: HashMap<u32, Vec<u32>>,
    events: u32,
}

impl Judge {
    pub fn see(&mut self, event: &Changed) {
        self.events += 1;
        self.versions.entry(event.aggregate).or_default().push(event.v);
    }

    pub fn events(&self) -> u32 {
        self.events
    }

    /// Each event once, in order.
    pub fn in_order(&self, events: u32) -> Result<(), String> {
        self.verdict(events, self.versions.values().all(|seen| seen.iter().copied().eq(1..=seen.len() as u32)))
    }

    /// Each event once, in any order.
    pub fn complete(&mut self, events: u32) -> Result<(), String> {
        let complete = self.versions.values_mut().all(|seen| {
            seen.sort_unstable();
            seen.iter().copied().eq(1..=seen.len() as u32)
        });
        self.verdict(events, complete)
    }

    fn verdict(&self, events: u32, right: bool) -> Result<(), String> {
        if right && self.events == events {
            Ok(())
        } else {
            Err(format!("of {events} events {} came, in the right order: {right}", self.events))
        }
    }
}
