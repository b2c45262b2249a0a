//! A bar on a terminal, a line a second elsewhere.

use std::cell::Cell;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::ledger::Counts;

pub(crate) struct Progress {
    bar: ProgressBar,
    last_line: Cell<Instant>,
}

impl Progress {
    pub(crate) fn new(events: u64) -> Self {
        let style = ProgressStyle::with_template("{bar:40} {msg} of {len} [{elapsed}]")
            .expect("a template without mistakes");
        Self {
            bar: ProgressBar::new(events).with_style(style),
            last_line: Cell::new(Instant::now()),
        }
    }

    /// Shows how many events were committed, published and handled.
    pub(crate) fn show(&self, counts: Counts) {
        let Counts { committed, published, handled } = counts;
        let text = format!("committed {committed}, published {published}, handled {handled}");
        if self.bar.is_hidden() {
            if self.last_line.get().elapsed() >= Duration::from_secs(1) {
                self.last_line.set(Instant::now());
                eprintln!("{text}");
            }
        } else {
            self.bar.set_position(handled as u64);
            self.bar.set_message(text);
        }
    }

    pub(crate) fn finish(&self) {
        self.bar.abandon();
    }
}
