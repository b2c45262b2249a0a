//! `outbox dead`.

use outbox_diesel::admin::{self, AdminError, Letter, Shown};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::Global;
use crate::failure::Failure;
use crate::letters::Which;
use crate::screen::{BAD, DIM, GOOD, HEAD, Screen};

/// What to do with events that ran out of attempts.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Dead {
    /// Lists them, oldest first.
    List {
        /// Only those of this subscription.
        #[arg(long, value_name = "NAME")]
        subscription: Option<String>,
        #[command(flatten)]
        which: Which,
        /// How many, at most.
        #[arg(long, default_value_t = 100, value_name = "EVENTS")]
        limit: u16,
    },
    /// Shows one, with its payload.
    Show {
        /// Whose.
        #[arg(long, default_value = "default", value_name = "NAME")]
        subscription: String,
        /// The event's id.
        event_id: Uuid,
    },
    /// Tries them again, with all their attempts; what waits behind them follows in order.
    Retry {
        /// Whose. Default: `default` for ids, and with --all every subscription.
        #[arg(long, value_name = "NAME")]
        subscription: Option<String>,
        /// The events' ids.
        #[arg(required_unless_present = "all", conflicts_with = "all")]
        event_ids: Vec<Uuid>,
        /// All that the other options describe.
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        which: Which,
    },
    /// Gives them up: the subscription does not deliver them. They are kept, with the reason.
    Discard {
        /// Whose. Default: `default` for ids, and with --all every subscription.
        #[arg(long, value_name = "NAME")]
        subscription: Option<String>,
        /// The events' ids.
        #[arg(required_unless_present = "all", conflicts_with = "all")]
        event_ids: Vec<Uuid>,
        /// All that the other options describe. Needs --yes.
        #[arg(long, requires = "yes")]
        all: bool,
        #[command(flatten)]
        which: Which,
        /// Why, for whoever asks in a year.
        #[arg(long, value_name = "TEXT")]
        reason: String,
        /// Really all of them.
        #[arg(long)]
        yes: bool,
    },
}

impl Dead {
    pub(crate) async fn run(&self, global: &Global, screen: &Screen) -> Result<(), Failure> {
        let mut conn = global.target()?.open().await?;
        let conn = &mut conn;
        let whose = |subscription: &Option<String>| {
            subscription.clone().unwrap_or_else(|| "default".to_owned())
        };
        match self {
            Self::List { subscription, which, limit } => {
                let filter = which.filter(subscription.as_deref());
                let page = admin::list(conn, &filter, None, *limit).await?;
                let has_more = page.next.is_some();
                let value = || {
                    let letters = page.letters.iter().map(letter).collect::<Vec<_>>();
                    json!({ "dead": letters, "has_more": has_more })
                };
                screen.show(value, |screen| list(&page.letters, has_more, screen))?;
            }
            Self::Show { subscription, event_id } => {
                let shown = admin::show(conn, subscription, *event_id).await?;
                screen.show(|| shown_value(&shown), |screen| show(&shown, screen))?;
            }
            Self::Retry { subscription, event_ids, all, which } => {
                let retried = if *all {
                    let spinner = screen.spinner("making dead letters due");
                    let retried =
                        admin::retry_all(conn, &which.filter(subscription.as_deref())).await;
                    spinner.finish_and_clear();
                    retried?
                } else if let [one] = event_ids.as_slice() {
                    admin::retry(conn, &whose(subscription), *one).await.map(|()| 1)?
                } else {
                    admin::retry_many(conn, &whose(subscription), event_ids).await?
                };
                let text =
                    format!("{retried} events are tried again; what waits behind them follows");
                screen.show(|| json!({ "retried": retried }), |screen| screen.line(text))?;
            }
            Self::Discard { subscription, event_ids, all, which, reason, yes: _ } => {
                let discarded = if *all {
                    let spinner = screen.spinner("discarding");
                    let filter = which.filter(subscription.as_deref());
                    let discarded = admin::discard_all(conn, &filter, reason).await;
                    spinner.finish_and_clear();
                    discarded?
                } else {
                    discard(conn, &whose(subscription), event_ids, reason).await?
                };
                let text = format!("{discarded} events are given up, and kept in outbox.discarded");
                screen.show(|| json!({ "discarded": discarded }), |screen| screen.line(text))?;
            }
        }
        Ok(())
    }
}

async fn discard(
    conn: &mut diesel_async::AsyncPgConnection,
    subscription: &str,
    event_ids: &[Uuid],
    reason: &str,
) -> Result<u64, AdminError> {
    let mut discarded = 0;
    for event_id in event_ids {
        admin::discard(conn, subscription, *event_id, reason).await?;
        discarded += 1;
    }
    Ok(discarded)
}

fn list(letters: &[Letter], has_more: bool, screen: &Screen) -> std::io::Result<()> {
    if letters.is_empty() {
        return screen.line(format_args!("{GOOD}no dead letters{GOOD:#}"));
    }
    let row = |letter: &Letter| {
        vec![
            letter.event_id.to_string(),
            letter.subscription.clone(),
            letter.event_type.clone(),
            format!("{} {}", letter.aggregate_type, letter.aggregate_id),
            letter.attempts.to_string(),
            letter.held.to_string(),
            letter.died_at.format("%Y-%m-%d %H:%M:%S").to_string(),
            letter.error.clone().unwrap_or_default(),
        ]
    };
    let head =
        ["EVENT", "SUBSCRIPTION", "TYPE", "AGGREGATE", "ATTEMPTS", "HELD", "DIED AT", "ERROR"];
    screen.table(&head, letters.iter().map(row).collect())?;
    if screen.is_terminal() {
        let more = if has_more { "there are more: --limit; " } else { "" };
        screen.line(format_args!("\n{DIM}{more}HELD: later events of the aggregate that wait. Look: outbox dead show ID{DIM:#}"))?;
    }
    Ok(())
}

fn letter(letter: &Letter) -> Value {
    json!({
        "event_id": letter.event_id.to_string(), "subscription": letter.subscription, "seq": letter.seq,
        "topic": letter.topic, "aggregate_type": letter.aggregate_type, "aggregate_id": letter.aggregate_id,
        "event_type": letter.event_type, "event_version": letter.event_version,
        "created_at": letter.created_at.to_rfc3339(), "attempts": letter.attempts, "error": letter.error,
        "parked_at": letter.parked_at.to_rfc3339(), "died_at": letter.died_at.to_rfc3339(), "held": letter.held,
    })
}

fn shown_value(shown: &Shown) -> Value {
    let mut value = letter(&shown.letter);
    value["dedup_key"] = json!(shown.dedup_key);
    // As texts: they are shown byte for byte.
    value["payload"] = json!(shown.payload);
    value["headers"] = json!(shown.headers);
    value
}

fn show(shown: &Shown, screen: &Screen) -> std::io::Result<()> {
    let letter = &shown.letter;
    let error = letter.error.as_deref().unwrap_or("none recorded");
    let facts = [
        ("event", letter.event_id.to_string()),
        ("type", format!("{} (version {})", letter.event_type, letter.event_version)),
        ("aggregate", format!("{} {}", letter.aggregate_type, letter.aggregate_id)),
        ("topic", letter.topic.clone()),
        ("subscription", letter.subscription.clone()),
        ("emitted", letter.created_at.to_rfc3339()),
        ("first failed", letter.parked_at.to_rfc3339()),
        ("died", letter.died_at.to_rfc3339()),
        ("attempts", letter.attempts.to_string()),
        ("held behind it", letter.held.to_string()),
        ("error", format!("{BAD}{error}{BAD:#}")),
        ("dedup key", shown.dedup_key.clone().unwrap_or_default()),
        ("headers", shown.headers.clone()),
        ("payload", shown.payload.clone()),
    ];
    facts
        .iter()
        .try_for_each(|(name, fact)| screen.line(format_args!("{HEAD}{name:<15}{HEAD:#}{fact}")))
}
