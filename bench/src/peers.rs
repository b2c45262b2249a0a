//! Against other outboxes from the registry, each with a publisher that only counts. They are a
//! workspace of their own, `benches/peers`, and keep to the words of [`Side`].

use std::path::Path;
use std::time::Instant;

use outbox_tests::TestDatabase;

use crate::drain::sides;
use crate::figure::{Figure, Goal, Round};
use crate::log::{Log, Shape};
use crate::side::Side;
use crate::{Bench, Outcome};

/// A peer: the figure's name, its own, the goal, and which part of the events it gets. Its pace does
/// not depend on how many there are, or falls with them.
const PEERS: [(&str, &str, f64, u32); 2] =
    [("drain_vs_obix", "obix", 4.0, 3), ("drain_vs_outbox_postgres", "outbox-postgres", 20.0, 30)];

pub(crate) async fn run(bench: &mut Bench, shape: Shape) -> Outcome {
    let Some(programs) = bench.peers.clone() else { return Ok(()) };
    if !PEERS.iter().any(|(figure, ..)| bench.wants(figure)) {
        return Ok(());
    }
    let mut log = Log::new(&bench.servers, shape);
    for (name, peer, goal, part) in PEERS {
        let program = programs.join(peer);
        if !bench.wants(name) || !program.exists() {
            continue;
        }
        let mut figure = Figure::new(name, "events/s", Goal::Ratio(goal));
        for round in 0..bench.rounds {
            let mut rates = [0.0; 2];
            for side in sides(round) {
                rates[usize::from(side)] = if side == 0 {
                    log.count().await?
                } else {
                    drain(&program, shape, part).await?
                };
            }
            figure.push(Round::of(rates[0], rates[1]));
        }
        bench.report(&figure);
    }
    Ok(())
}

/// Events per second of the peer, which emits them itself before that.
async fn drain(program: &Path, shape: Shape, part: u32) -> Outcome<f64> {
    let aggregates = shape.aggregates.min(shape.events / part);
    let events = shape.events / part / aggregates * aggregates;
    let database = TestDatabase::empty();
    let arguments = [database.url(), events.to_string(), aggregates.to_string()];
    let mut side = Side::start_program(program, &arguments.each_ref().map(String::as_str)).await?;
    let started = Instant::now();
    side.go().await?;
    let wrong = side.done().await?;
    let seconds = started.elapsed().as_secs_f64();
    side.end().await?;
    if wrong.is_empty() {
        Ok(f64::from(events) / seconds)
    } else {
        Err(format!("{}: {wrong}", program.display()).into())
    }
}
