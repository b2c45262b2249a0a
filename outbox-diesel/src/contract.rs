//! The event contract: what consumers rely on, in a file that is committed, and the check that no
//! change breaks it.
//!
//! ```
//! use outbox_diesel::{OutboxEvent, outbox_events};
//! use schemars::JsonSchema;
//! use serde::Serialize;
//!
//! #[derive(Serialize, JsonSchema, OutboxEvent)]
//! #[outbox(aggregate = "order", aggregate_id = "id", topic = "orders")]
//! struct OrderCreated { id: i64, note: Option<String> }
//!
//! outbox_events! { enum ShopEvent { OrderCreated } }
//!
//! # let file = std::env::temp_dir().join(format!("outbox-contract-doc-{}.json", std::process::id()));
//! # outbox_diesel::contract::Catalogue::of::<ShopEvent>().write(&file)?;
//! // In a test:
//! outbox_diesel::contract::assert_kept::<ShopEvent>(&file);
//! # std::fs::remove_file(&file)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What breaks consumers
//!
//! | Change of an event, in the same version | |
//! |---|---|
//! | a field removed, renamed, or of another type | breaks |
//! | a field narrowed: bounds, pattern, no further fields | breaks |
//! | a field made required, optional or nullable | breaks |
//! | a field added that is required | breaks: events that are still in the log, or replayed, lack it |
//! | an enum value or alternative removed | breaks |
//! | topic or aggregate changed, a declared header removed | breaks |
//! | the event removed, without a higher version | breaks |
//! | a field added with `#[serde(default)]` or as an `Option` | passes |
//! | an enum value, alternative, header, event or version added | passes |
//! | titles, descriptions, defaults, examples | pass |
//!
//! Schemas are those of what serde reads (`Deserialize`): only they tell an optional field.
//!
//! # The file
//!
//! `OUTBOX_CONTRACT=accept cargo test` writes it: the first time, and when a change that breaks is
//! meant (no consumer is left). A change that passes is written by the test itself; commit it, and
//! let CI say `git diff --exit-code` after the tests.
//!
//! A change that breaks gets the next version: `#[outbox(version = 2)]`, with `upcast` if this
//! service still reads the old one. Both versions can live side by side, as two types or variants
//! with one `event_type`.

mod asyncapi;
mod catalogue;
mod cloud_event;
mod compare;
mod schema;
mod variant;

use std::path::{Path, PathBuf};

pub use self::catalogue::{Catalogue, EventContract, HasSchema, Schemas};
pub use self::compare::Breach;
use crate::event_set::EventSet;

pub use schemars;

/// Asserts that the events of the set keep the contract in this file; in tests, the path is relative
/// to the package.
///
/// # Panics
/// With one line per breach, naming event, field and rule.
#[track_caller]
pub fn assert_kept<S: EventSet>(file: impl AsRef<Path>)
where
    S::Members: Schemas,
{
    let accept = std::env::var_os("OUTBOX_CONTRACT").is_some_and(|word| word == "accept");
    let catalogue = Catalogue::of::<S>();
    let kept =
        if accept { catalogue.write(file).map(|()| Kept::Written) } else { catalogue.keep(file) };
    match kept {
        Ok(_) => {}
        Err(ContractError::Broken { file, breaches }) => {
            let lines: Vec<String> =
                breaches.iter().map(|breach| format!("\n  {breach}")).collect();
            panic!(
                "the contract in {} is broken:{}\ngive the event the next version, as in \
                 `#[outbox(version = 2)]`; if it has no consumers, `OUTBOX_CONTRACT=accept cargo \
                 test` writes the new contract",
                file.display(),
                lines.concat()
            );
        }
        Err(other) => {
            let source = std::error::Error::source(&other).map(|source| format!(": {source}"));
            panic!("{other}{}", source.unwrap_or_default());
        }
    }
}

/// What [`Catalogue::keep`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// Nothing has changed.
    Unchanged,
    /// Something was added, and written to the file.
    Written,
}

/// Why a contract is not kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ContractError {
    /// Consumers would break. Give the event the next version.
    #[error("{} change(s) break the contract in {}", breaches.len(), file.display())]
    Broken {
        /// The contract.
        file: PathBuf,
        /// All of them.
        breaches: Vec<Breach>,
    },
    /// There is no contract yet. `OUTBOX_CONTRACT=accept cargo test` writes it; then commit it.
    #[error("there is no contract {} yet; `OUTBOX_CONTRACT=accept cargo test` writes it, then commit it", file.display())]
    Missing {
        /// Where it should be.
        file: PathBuf,
    },
    /// The file is not a contract, perhaps after a merge.
    #[error("{} is not a contract", file.display())]
    Invalid {
        /// Where it is.
        file: PathBuf,
        /// What serde says.
        source: serde_json::Error,
    },
    /// The file cannot be read or written.
    #[error("{} cannot be read or written", file.display())]
    File {
        /// Where it is.
        file: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
}
