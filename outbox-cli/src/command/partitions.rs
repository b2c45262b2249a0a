//! `outbox partitions`.

use std::io;

use indicatif::HumanBytes;
use outbox_diesel::admin::{self, Partition};
use serde_json::{Value, json};

use crate::Global;
use crate::failure::Failure;
use crate::screen::Screen;

/// What to do with the log's partitions.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Partitions {
    /// Lists them in the order of their events.
    List,
    /// Makes those that the next two days need, as relays do by themselves.
    Extend,
}

impl Partitions {
    pub(crate) async fn run(&self, global: &Global, screen: &Screen) -> Result<(), Failure> {
        let mut conn = global.target()?.open().await?;
        match self {
            Self::List => {
                let partitions = admin::partitions(&mut conn).await?;
                let values = || partitions.iter().map(value).collect();
                screen.show(values, |screen| show(&partitions, screen))?;
            }
            Self::Extend => {
                let spinner = screen.spinner("making partitions");
                let made = admin::extend_partitions(&mut conn).await;
                spinner.finish_and_clear();
                let made = made?;
                let text = match made {
                    0 => "nothing is missing".to_owned(),
                    made => format!("made {made} partitions"),
                };
                screen.show(|| json!({ "made": made }), |screen| screen.line(text))?;
            }
        }
        Ok(())
    }
}

/// As a table.
pub(super) fn show(partitions: &[Partition], screen: &Screen) -> io::Result<()> {
    let bound = |seq: Option<i64>| seq.map_or_else(|| "-".to_owned(), |seq| seq.to_string());
    let row = |partition: &Partition| {
        vec![
            partition.name.clone(),
            partition.state.clone(),
            bound(partition.from_seq),
            bound(partition.to_seq),
            format!("~{}", partition.rows),
            HumanBytes(u64::try_from(partition.bytes).unwrap_or(0)).to_string(),
        ]
    };
    screen.table(
        &["NAME", "STATE", "FROM", "BELOW", "ROWS", "SIZE"],
        partitions.iter().map(row).collect(),
    )
}

/// As JSON.
pub(super) fn value(partition: &Partition) -> Value {
    json!({
        "name": partition.name, "state": partition.state, "from_seq": partition.from_seq,
        "to_seq": partition.to_seq, "rows_estimated": partition.rows, "bytes": partition.bytes,
    })
}
