//! The operations kit: alert rules, the dashboard, and the runbook that both lead to.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use outbox_tests::{TestDatabase, TestRedis, eventually};
use serde_json::Value;
use xtask::programs::{find_prometheus, find_promtool};

use crate::metrics::Scraped;
use crate::program::{PATIENCE, Ran, free_port, run};

const ALERTS: &str = include_str!("../../../ops/alerts.yml");
const ALERT_TESTS: &str = include_str!("../../../ops/alerts.test.yml");
const DASHBOARD: &str = include_str!("../../../ops/dashboard.json");
const RUNBOOK: &str = include_str!("../../../docs/src/runbook.md");

fn ops() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../ops")
}

fn promtool() -> Option<Command> {
    let found = find_promtool();
    if found.is_none() {
        eprintln!("SKIPPED: no promtool; install Debian's package prometheus, or set PROMTOOL");
    }
    found.map(Command::new)
}

fn alerts() -> Vec<&'static str> {
    ALERTS.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect()
}

#[test]
fn every_alert_fires_where_it_should_and_only_there() {
    let Some(mut check) = promtool() else { return };
    check.args(["check", "rules", "alerts.yml"]).current_dir(ops());
    run(check).said();
    let Some(mut test) = promtool() else { return };
    test.args(["test", "rules", "alerts.test.yml"]).current_dir(ops());
    run(test).said();
}

#[test]
fn every_alert_is_tested_and_leads_to_its_section_of_the_runbook() {
    let alerts = alerts();
    assert!(alerts.len() >= 11, "{alerts:?}");
    for alert in &alerts {
        for test in ["fires", "stays silent"] {
            assert!(ALERT_TESTS.contains(&format!("- name: {alert} {test}\n")), "{alert} {test}");
        }
        assert!(RUNBOOK.contains(&format!("\n## {alert}\n")), "{alert} has no section");
        let link = format!("runbook.md#{}\n", alert.to_lowercase());
        assert!(ALERTS.contains(&link), "{alert} has no link");
    }
    let sections = RUNBOOK.lines().filter_map(|line| line.strip_prefix("## "));
    assert_eq!(sections.collect::<Vec<_>>(), alerts, "sections in the order of the alerts");
}

/// A Prometheus that scrapes a relay; killed when the value is dropped.
struct Prometheus {
    server: Child,
    url: String,
    _directory: tempfile::TempDir,
}

impl Prometheus {
    fn scrape(target: u16) -> Option<Self> {
        let Some(program) = find_prometheus() else {
            eprintln!("SKIPPED: no prometheus; install Debian's package, or set PROMETHEUS");
            return None;
        };
        let directory = tempfile::tempdir().unwrap();
        let config = directory.path().join("prometheus.yml");
        let text = format!(
            "global: {{scrape_interval: 1s}}\nscrape_configs:\n- job_name: outbox\n  static_configs: [{{targets: ['127.0.0.1:{target}']}}]\n"
        );
        std::fs::write(&config, text).unwrap();
        let address = format!("127.0.0.1:{}", free_port());
        let server = Command::new(program)
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", directory.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it was found");
        Some(Self { server, url: format!("http://{address}"), _directory: directory })
    }

    /// What a query finds now: nothing, or lines.
    fn query(&self, query: &str) -> Ran {
        let mut ask = promtool().expect("it comes with Prometheus");
        ask.args(["query", "instant", &self.url, query]);
        run(ask)
    }

    async fn finds(&self, query: &str) {
        let mut last = None;
        let found = tokio::time::timeout(
            PATIENCE,
            eventually(2 * PATIENCE, async || {
                let ran = self.query(query);
                let found = ran.code == Some(0) && ran.out.contains("=>");
                last = Some(ran);
                found.then_some(())
            }),
        )
        .await;
        assert!(found.is_ok(), "{query} finds nothing: {last:?}");
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        self.server.kill().ok();
        self.server.wait().ok();
    }
}

/// The queries of all panels, as Grafana sends them.
fn queries() -> Vec<String> {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    targets.map(|target| target["expr"].as_str().unwrap().replace("$subscription", ".*")).collect()
}

/// The series that the rules speak of.
fn series() -> BTreeSet<&'static str> {
    let rules = ALERTS.lines().filter(|line| !line.contains("runbook_url"));
    let words = rules.flat_map(|line| line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'));
    words.filter(|word| word.starts_with("outbox_")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_query_of_the_dashboard_and_every_series_of_the_alerts_is_served_by_a_relay() {
    if promtool().is_none() {
        return;
    }
    let (database, redis) = (TestDatabase::new(), TestRedis::new());
    let relay = Scraped::start(&database, &redis.url(), redis.prefix());
    database.insert("a");
    let Some(prometheus) = Prometheus::scrape(relay.port()) else { return };
    let (queries, series) = (queries(), series());
    assert!(queries.len() >= 12 && series.len() >= 12, "{queries:?} {series:?}");
    for query in queries {
        prometheus.finds(&query).await;
    }
    for name in series {
        prometheus.finds(&format!("{name}{{subscription=\"default\"}}")).await;
    }
    // The check itself: what is not served is not found.
    for name in ["outbox_nothing_of_the_kind", "outbox_relay_up{shard=\"1\"}"] {
        let ran = prometheus.query(name);
        assert_eq!((ran.code, ran.out.trim()), (Some(0), ""), "{name}");
    }
}
