//! [`Figure`]: one row of the table, from several rounds.

use serde_json::json;

/// What a figure has to reach.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Goal {
    /// The ratio, at least.
    Ratio(f64),
    /// Ours, at most.
    AtMost(f64),
    /// The ratio, at most.
    RatioAtMost(f64),
    /// Either of both, at most.
    EitherAtMost {
        /// The ratio.
        ratio: f64,
        /// Ours.
        ours: f64,
    },
    /// Reported for comparison.
    None,
}

/// One round: both sides, measured one right after the other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Round {
    pub(crate) ours: f64,
    pub(crate) other: Option<f64>,
}

impl Round {
    /// Two sides.
    pub(crate) fn of(ours: f64, other: f64) -> Self {
        Self { ours, other: Some(other) }
    }

    /// Nothing to compare with.
    pub(crate) fn alone(ours: f64) -> Self {
        Self { ours, other: None }
    }

    fn ratio(self) -> Option<f64> {
        self.other.map(|other| self.ours / other)
    }
}

/// A figure of the table.
#[derive(Debug)]
pub(crate) struct Figure {
    pub(crate) name: String,
    pub(crate) unit: &'static str,
    pub(crate) goal: Goal,
    pub(crate) rounds: Vec<Round>,
}

impl Figure {
    /// No round yet.
    pub(crate) fn new(name: impl Into<String>, unit: &'static str, goal: Goal) -> Self {
        Self { name: name.into(), unit, goal, rounds: Vec::new() }
    }

    /// Adds a round.
    pub(crate) fn push(&mut self, round: Round) {
        self.rounds.push(round);
    }

    /// The median of our side.
    pub(crate) fn ours(&self) -> f64 {
        median(self.rounds.iter().map(|round| round.ours).collect())
    }

    fn other(&self) -> Option<f64> {
        let others: Vec<f64> = self.rounds.iter().filter_map(|round| round.other).collect();
        (!others.is_empty()).then(|| median(others))
    }

    /// The median of the rounds' ratios: load that comes and goes hits both sides of a round.
    fn ratio(&self) -> Option<f64> {
        let ratios = self.ratios();
        (!ratios.is_empty()).then(|| median(ratios))
    }

    fn ratios(&self) -> Vec<f64> {
        self.rounds.iter().filter_map(|round| round.ratio()).collect()
    }

    /// Whether the goal is reached, if there is one.
    pub(crate) fn is_reached(&self) -> Option<bool> {
        let (ours, ratio) = (self.ours(), self.ratio().unwrap_or(f64::NAN));
        match self.goal {
            Goal::Ratio(least) => Some(ratio >= least),
            Goal::AtMost(most) => Some(ours <= most),
            Goal::RatioAtMost(most) => Some(ratio <= most),
            Goal::EitherAtMost { ratio: most_ratio, ours: most } => {
                Some(ratio <= most_ratio || ours <= most)
            }
            Goal::None => None,
        }
    }

    /// The smallest and the largest of what the goal is about: ratios, or our side.
    fn range(&self) -> (f64, f64) {
        let ratios = self.ratios();
        let of_ratio = matches!(self.goal, Goal::Ratio(_) | Goal::RatioAtMost(_));
        let values = if ratios.is_empty() || !of_ratio {
            self.rounds.iter().map(|round| round.ours).collect()
        } else {
            ratios
        };
        let min = values.iter().copied().fold(f64::INFINITY, f64::min);
        (min, values.iter().copied().fold(f64::NEG_INFINITY, f64::max))
    }

    /// One line of JSON.
    pub(crate) fn to_json(&self) -> String {
        let (min, max) = self.range();
        json!({
            "figure": self.name,
            "ours": rounded(self.ours()),
            "other": self.other().map(rounded),
            "ratio": self.ratio().map(rounded),
            "unit": self.unit,
            "rounds": self.rounds.len(),
            "min": rounded(min),
            "max": rounded(max),
        })
        .to_string()
    }

    /// One line of the table for people.
    pub(crate) fn to_row(&self) -> String {
        let (min, max) = self.range();
        let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), short);
        let goal = match self.goal {
            Goal::Ratio(least) => format!(">= {least} x"),
            Goal::AtMost(most) => format!("<= {most}"),
            Goal::RatioAtMost(most) => format!("<= {most} x"),
            Goal::EitherAtMost { ratio, ours } => format!("<= {ratio} x or {ours}"),
            Goal::None => "-".to_owned(),
        };
        let reached = match self.is_reached() {
            Some(true) => "yes",
            Some(false) => "NO",
            None => "",
        };
        format!(
            "| `{}` | {} | {} | {} | {} | {}..{} | {goal} | {reached} |",
            self.name,
            number(Some(self.ours())),
            number(self.other()),
            number(self.ratio()),
            self.unit,
            short(min),
            short(max),
        )
    }
}

/// The head of the table for people.
pub(crate) const HEAD: &str = "\
| figure | ours | other | ratio | unit | min..max | goal | reached |
|---|---:|---:|---:|---|---|---|---|";

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        len if len % 2 == 1 => values[len / 2],
        len => f64::midpoint(values[len / 2 - 1], values[len / 2]),
    }
}

/// The value below which this share of the values lies.
pub(crate) fn percentile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
    let nth = ((values.len() as f64 * share).ceil() as usize).clamp(1, values.len().max(1)) - 1;
    values.get(nth).copied().unwrap_or(f64::NAN)
}

fn rounded(value: f64) -> f64 {
    (value * 10_000.0).round() / 10_000.0
}

fn short(value: f64) -> String {
    let value = value + 0.0;
    match value.abs() {
        size if size >= 1000.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_the_ratios_counts() {
        let mut figure = Figure::new("f", "events/s", Goal::Ratio(0.75));
        for (ours, other) in [(10.0, 10.0), (1.0, 2.0), (8.0, 10.0)] {
            figure.push(Round::of(ours, other));
        }
        assert_eq!(figure.is_reached(), Some(true));
        let json: serde_json::Value = serde_json::from_str(&figure.to_json()).expect("JSON");
        assert_eq!(json["ratio"], 0.8);
        assert_eq!((&json["min"], &json["max"]), (&json!(0.5), &json!(1.0)));
    }

    #[test]
    #[expect(clippy::float_cmp, reason = "nothing is computed")]
    fn percentiles_are_values_that_were_measured() {
        let mut values: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(percentile(&mut values, 0.5), 50.0);
        assert_eq!(percentile(&mut values, 0.99), 99.0);
        assert_eq!(percentile(&mut [7.0], 0.99), 7.0);
    }
}
