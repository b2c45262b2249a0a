//! What people and machines see: tables and colours on a terminal, tab-separated lines elsewhere,
//! JSON where it is asked for.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use comfy_table::{ContentArrangement, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;

/// Tables are fitted into terminals of at least so many columns.
const NARROWEST: u16 = 40;

/// Headings.
pub(crate) const HEAD: Style = Style::new().bold();
/// All is well.
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
/// Look at it.
pub(crate) const WARN: Style = AnsiColor::Yellow.on_default();
/// Act.
pub(crate) const BAD: Style = AnsiColor::Red.on_default().bold();
/// Beside the point.
pub(crate) const DIM: Style = Style::new().dimmed();

/// Where output goes, and in which form.
#[derive(Debug)]
pub(crate) struct Screen {
    json: bool,
    is_terminal: bool,
}

#[allow(clippy::unused_self, reason = "what is printed goes through the screen, whatever its form")]
impl Screen {
    pub(crate) fn new(json: bool) -> Self {
        Self { json, is_terminal: io::stdout().is_terminal() }
    }

    /// Whether a machine reads it.
    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// Whether a person sees it as it comes.
    pub(crate) fn is_terminal(&self) -> bool {
        self.is_terminal && !self.json
    }

    /// Prints the value if JSON is asked for, else what `text` prints.
    pub(crate) fn show(
        &self,
        value: impl FnOnce() -> Value,
        text: impl FnOnce(&Self) -> io::Result<()>,
    ) -> io::Result<()> {
        if self.json { self.line(value().to_string()) } else { text(self) }
    }

    /// Prints a line; styles are left out unless it is a terminal that shows them.
    pub(crate) fn line(&self, text: impl std::fmt::Display) -> io::Result<()> {
        writeln!(anstream::stdout(), "{text}")
    }

    /// Prints rows: as a table on a terminal, else separated by tabs.
    pub(crate) fn table(&self, head: &[&str], rows: Vec<Vec<String>>) -> io::Result<()> {
        if !self.is_terminal {
            self.line(head.join("\t").to_lowercase())?;
            // A tab or line break within a value would look like another one.
            let clean = |value: &String| value.replace(['\t', '\n', '\r'], " ");
            return rows.iter().try_for_each(|row| {
                self.line(row.iter().map(clean).collect::<Vec<_>>().join("\t"))
            });
        }
        let mut table = Table::new();
        let arrangement = arrangement(table.width());
        table.load_preset(presets::NOTHING).set_content_arrangement(arrangement);
        table.set_header(head.iter().copied());
        for row in rows {
            table.add_row(row);
        }
        self.line(table.trim_fmt())
    }

    /// A sign of life while something takes long, on a terminal only.
    pub(crate) fn spinner(&self, what: &'static str) -> ProgressBar {
        let bar = ProgressBar::new_spinner().with_message(what);
        bar.enable_steady_tick(Duration::from_millis(100));
        bar
    }

    /// How far something is, on a terminal only.
    pub(crate) fn bar(&self, length: u64) -> ProgressBar {
        let style = ProgressStyle::with_template("{bar:40} {percent}% {msg} {elapsed}")
            .expect("the template is a constant");
        ProgressBar::new(length).with_style(style)
    }
}

/// Terminals of containers often say that they have no columns: to fit, every letter would get a line
/// of its own.
fn arrangement(width: Option<u16>) -> ContentArrangement {
    match width {
        Some(width) if width < NARROWEST => ContentArrangement::Disabled,
        _ => ContentArrangement::Dynamic,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_not_fitted_into_a_terminal_without_columns() {
        assert!(matches!(arrangement(Some(0)), ContentArrangement::Disabled));
        assert!(matches!(arrangement(Some(80)), ContentArrangement::Dynamic));
        assert!(matches!(arrangement(None), ContentArrangement::Dynamic));
    }
}
