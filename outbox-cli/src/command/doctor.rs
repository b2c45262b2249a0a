//! `outbox doctor`.

mod streams;

use std::cmp::Reverse;
use std::process::ExitCode;

use outbox_diesel::admin;
use outbox_diesel::doctor::{self, Finding, Severity};
use serde_json::{Value, json};

use crate::Global;
use crate::broker::Streams;
use crate::failure::Failure;
use crate::screen::{BAD, DIM, GOOD, HEAD, Screen, WARN};

/// Says why nothing is delivered: the worst first, each with what was seen and the command that
/// mends it. Changes nothing. Exit code 10 if the worst is a warning, 20 if it is critical.
#[derive(Debug, clap::Args)]
pub(crate) struct Doctor {
    /// Look at the streams in Redis too.
    #[arg(long, env = "REDIS_URL", hide_env_values = true, value_name = "URL")]
    redis_url: Option<String>,
    #[command(flatten)]
    streams: Streams,
    /// How many entries a stream, or what a consumer group has not read, may have.
    #[arg(long, default_value_t = 100_000, value_name = "ENTRIES")]
    stream_length: u64,
}

impl Doctor {
    pub(crate) async fn run(&self, global: &Global, screen: &Screen) -> Result<ExitCode, Failure> {
        crate::broker::choose_crypto_provider();
        let mut conn = global.target()?.connect().await?;
        let spinner = screen.spinner("examining");
        let mut findings = doctor::examine(&mut conn).await?;
        if let Some(url) = self.redis_url.as_deref().filter(|url| !url.is_empty()) {
            // Without a schema there are no topics, and the finding is there already.
            let topics = admin::recent_topics(&mut conn).await.unwrap_or_default();
            findings
                .extend(streams::examine(url, &self.streams, &topics, self.stream_length).await?);
            findings.sort_by_key(|finding| Reverse(finding.severity));
        }
        spinner.finish_and_clear();
        screen.show(|| value(&findings), |screen| show(&findings, screen))?;
        Ok(ExitCode::from(match findings.first().map(|finding| finding.severity) {
            Some(Severity::Critical) => 20,
            Some(Severity::Warning) => 10,
            _ => 0,
        }))
    }
}

fn value(findings: &[Finding]) -> Value {
    let finding = |finding: &Finding| {
        json!({
            "name": finding.name, "severity": finding.severity.as_str(), "summary": finding.summary,
            "evidence": finding.evidence, "remedy": finding.remedy,
        })
    };
    json!({ "findings": findings.iter().map(finding).collect::<Vec<_>>() })
}

fn show(findings: &[Finding], screen: &Screen) -> std::io::Result<()> {
    if findings.is_empty() {
        return screen.line(format_args!(
            "{GOOD}all is well{GOOD:#}: nothing stands in the way of delivery"
        ));
    }
    for finding in findings {
        let style = match finding.severity {
            Severity::Critical => BAD,
            Severity::Warning => WARN,
            _ => DIM,
        };
        let (severity, name) = (finding.severity, finding.name);
        screen.line(format_args!(
            "{style}{severity}{style:#} {DIM}{name}{DIM:#} {HEAD}{}{HEAD:#}",
            finding.summary
        ))?;
        for evidence in &finding.evidence {
            screen.line(format_args!("    {evidence}"))?;
        }
        screen.line(format_args!("  {GOOD}mend{GOOD:#}  {}\n", finding.remedy))?;
    }
    Ok(())
}
