//! `outbox rebase`.

use outbox_diesel::admin::{self, RebasePlan, Undelivered};
use serde_json::{Value, json};

use crate::Global;
use crate::failure::Failure;
use crate::screen::{GOOD, Screen, WARN};

/// Makes the outbox at home in this database, after a dump and restore, or after its sequence was
/// set back. Shows what it would do; --yes does it. Nothing is lost.
#[derive(Debug, clap::Args)]
pub(crate) struct Rebase {
    /// Do it.
    #[arg(long)]
    yes: bool,
    /// Even if nothing seems to be wrong: for servers that do not tell who they are.
    #[arg(long)]
    anyway: bool,
}

impl Rebase {
    pub(crate) async fn run(&self, global: &Global, screen: &Screen) -> Result<(), Failure> {
        let mut conn = global.target()?.open().await?;
        let spinner = screen.spinner("reading the whole log");
        let plan = admin::plan_rebase(&mut conn).await;
        spinner.finish_and_clear();
        let mut plan = plan?;
        if self.anyway {
            plan = plan.anyway();
        }
        let is_due = plan.is_needed() || self.anyway;
        if !is_due || !self.yes {
            return Ok(screen.show(|| value(&plan, None), |screen| show(&plan, is_due, screen))?);
        }
        let spinner = screen.spinner("rebasing; emits wait");
        let done = admin::rebase(&mut conn, &plan).await;
        spinner.finish_and_clear();
        let done = done?;
        Ok(screen.show(
            || value(&plan, Some(&done)),
            |screen| {
                rows(&done, screen)?;
                screen.line(format_args!("{GOOD}rebased{GOOD:#}: relays go on by themselves"))
            },
        )?)
    }
}

fn value(plan: &RebasePlan, done: Option<&[Undelivered]>) -> Value {
    let subscription = |undelivered: &Undelivered| json!({ "name": undelivered.subscription, "undelivered": undelivered.events, "parked": undelivered.parked });
    json!({
        "is_needed": plan.is_needed(), "is_foreign": plan.is_foreign, "is_behind": plan.is_behind,
        "subscriptions": done.unwrap_or(&plan.subscriptions).iter().map(subscription).collect::<Vec<_>>(),
        "done": done.is_some(),
    })
}

fn rows(subscriptions: &[Undelivered], screen: &Screen) -> std::io::Result<()> {
    let row = |undelivered: &Undelivered| {
        vec![
            undelivered.subscription.clone(),
            undelivered.events.to_string(),
            undelivered.parked.to_string(),
        ]
    };
    screen.table(
        &["SUBSCRIPTION", "UNDELIVERED", "PARKED BEFORE"],
        subscriptions.iter().map(row).collect(),
    )
}

fn show(plan: &RebasePlan, is_due: bool, screen: &Screen) -> std::io::Result<()> {
    if plan.is_foreign {
        screen.line(format_args!("{WARN}foreign{WARN:#}: this outbox was made in another database, and its transaction ids mean nothing here"))?;
    }
    if plan.is_behind {
        screen.line(format_args!(
            "{WARN}behind{WARN:#}: the sequence lies below events or ticks that exist"
        ))?;
    }
    if !is_due {
        return screen.line(format_args!("{GOOD}at home{GOOD:#}: there is nothing to rebase"));
    }
    screen.line("a rebase parks what is undelivered, lifts the sequence and takes on this database's identity:")?;
    rows(&plan.subscriptions, screen)?;
    screen.line("nothing was done; give --yes to do it")
}
