//! What relays cost while nothing happens.

use std::time::{Duration, Instant};

use diesel_async::{AsyncConnection as _, AsyncPgConnection, RunQueryDsl as _};

use crate::figure::{Figure, Goal, Round};
use crate::log::{Log, Shape};
use crate::{Bench, Outcome, process};

/// How long each look lasts.
const TIME: Duration = Duration::from_secs(8);

pub(crate) async fn run(bench: &mut Bench) -> Outcome {
    let most = [Goal::AtMost(60.0), Goal::AtMost(1.5), Goal::AtMost(2.0)];
    let figure = |name: &str, unit, goal| Figure::new(name, unit, goal);
    let mut figures = [
        figure("idle_statements_per_s", "statements/s", most[0]),
        figure("idle_cpu_percent", "% of a core", most[1]),
        figure("idle_statements_per_s_of_6_relays", "statements/s and relay", most[0]),
        figure("idle_cpu_percent_of_6_relays", "% of a core and relay", most[1]),
        figure("asleep_statements_per_s", "statements/s", most[2]),
        figure("asleep_cpu_percent", "% of a core", Goal::None),
        figure("asleep_statements_per_s_of_6_relays", "statements/s and relay", most[2]),
        figure("asleep_cpu_percent_of_6_relays", "% of a core and relay", Goal::None),
    ];
    if !figures.iter().any(|figure| bench.wants(&figure.name)) {
        return Ok(());
    }
    for _ in 0..bench.rounds {
        let asleep = &["--listen"][..];
        for (nth, relays, options) in [(0, 1, &[][..]), (2, 6, &[]), (4, 1, asleep), (6, 6, asleep)]
        {
            if !figures[nth..nth + 2].iter().any(|figure| bench.wants(&figure.name)) {
                continue;
            }
            let (statements, cpu) = look(bench, relays, options).await?;
            figures[nth].push(Round::alone(statements));
            figures[nth + 1].push(Round::alone(cpu));
        }
    }
    for figure in &figures {
        bench.report(figure);
    }
    Ok(())
}

/// Statements per second and percent of a core, of relays and server together, per relay. Each of
/// the relays' statements is a transaction of its own: these are counted.
async fn look(bench: &Bench, relays: u32, options: &[&str]) -> Outcome<(f64, f64)> {
    let log = Log::new(&bench.servers, Shape::none());
    let mut sides = Vec::new();
    for nth in 0..relays {
        let prefix = format!("bench-idle-{nth}:");
        let mut side = log.relay_with("default", &prefix, options).await?;
        side.go().await?;
        sides.push(side);
    }
    log.wait_for_shares("default", sides.len()).await;
    let mut pids = process::of_server(&log.database);
    pids.extend(sides.iter().map(crate::side::Side::pid));
    // Relays fall asleep one after another, and sessions tell what they did up to ten seconds later.
    let rest = Duration::from_secs(if options.is_empty() { 2 } else { 12 });
    // From another database, so that looking is not counted.
    let mut outside = AsyncPgConnection::establish(&bench.servers.database).await?;
    tokio::time::sleep(rest).await;

    let before = transactions(&mut outside, log.database.name()).await?;
    let used = process::cpu_seconds(&pids);
    let started = Instant::now();
    tokio::time::sleep(TIME).await;
    let seconds = started.elapsed().as_secs_f64();
    let used = process::cpu_seconds(&pids) - used;
    let after = transactions(&mut outside, log.database.name()).await?;
    for side in sides {
        side.end().await?;
    }
    let relays = f64::from(relays);
    Ok(((after - before) / seconds / relays, used / seconds / relays * 100.0))
}

async fn transactions(conn: &mut AsyncPgConnection, database: &str) -> Outcome<f64> {
    let query = format!(
        "(SELECT (xact_commit + xact_rollback)::double precision FROM pg_stat_database WHERE datname = '{database}')"
    );
    Ok(diesel::select(diesel::dsl::sql::<diesel::sql_types::Double>(&query))
        .get_result(conn)
        .await?)
}
