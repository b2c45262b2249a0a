//! [`Plot`]: a small chart as SVG. Written by hand, because the bench has one kind of chart, and a
//! plotting library has fonts, a raster and forty dependencies.

use std::fmt::Write as _;

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 36.0;
const BOTTOM: f64 = 44.0;

/// Events per second over a quantity. The steps are equally far apart, whatever they are.
#[derive(Debug)]
pub(crate) struct Plot {
    name: &'static str,
    quantity: &'static str,
    points: Vec<(u32, f64)>,
}

impl Plot {
    /// Nothing in it yet.
    pub(crate) fn new(name: &'static str, quantity: &'static str) -> Self {
        Self { name, quantity, points: Vec::new() }
    }

    /// Adds a point.
    pub(crate) fn push(&mut self, quantity: u32, events_per_second: f64) {
        self.points.push((quantity, events_per_second));
    }

    /// Its file's name.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// For people.
    pub(crate) fn to_row(&self) -> String {
        let points: Vec<String> =
            self.points.iter().map(|(x, y)| format!("{x}: {y:.0}/s")).collect();
        format!("{} | {}", self.quantity, points.join(" | "))
    }

    /// The chart.
    pub(crate) fn to_svg(&self) -> String {
        let top = ceiling(self.points.iter().map(|(_, y)| *y).fold(1.0, f64::max));
        let x = |nth: usize| {
            let steps = self.points.len().saturating_sub(1).max(1);
            #[expect(clippy::cast_precision_loss, reason = "a few points")]
            let share = nth as f64 / steps as f64;
            LEFT + share * (WIDTH - LEFT - RIGHT)
        };
        let y = |value: f64| HEIGHT - BOTTOM - value / top * (HEIGHT - TOP - BOTTOM);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             font-family=\"sans-serif\" font-size=\"11\">\n\
             <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n\
             <text x=\"{LEFT}\" y=\"20\" font-size=\"13\">events/s into Redis, over {}</text>\n",
            self.quantity
        );
        for line in 0..=4 {
            let value = top * f64::from(line) / 4.0;
            let at = y(value);
            writeln!(
                svg,
                "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 6.0,
                at + 4.0,
                thousands(value),
            )
            .expect("a String takes any text");
        }
        let mut path = String::new();
        for (nth, (quantity, value)) in self.points.iter().enumerate() {
            let (at_x, at_y) = (x(nth), y(*value));
            write!(path, "{at_x:.1},{at_y:.1} ").expect("a String takes any text");
            writeln!(
                svg,
                "<circle cx=\"{at_x:.1}\" cy=\"{at_y:.1}\" r=\"3\" fill=\"#06c\"/>\
                 <text x=\"{at_x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                HEIGHT - BOTTOM + 18.0,
                thousands(f64::from(*quantity)),
            )
            .expect("a String takes any text");
        }
        svg + &format!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"#06c\"/>\n</svg>\n",
            path.trim()
        )
    }
}

/// The next round number.
fn ceiling(value: f64) -> f64 {
    let power = 10_f64.powf(value.log10().floor());
    [1.0, 2.0, 4.0, 6.0, 8.0, 10.0]
        .into_iter()
        .map(|digit| digit * power)
        .find(|round| *round >= value)
        .unwrap_or(value)
}

fn thousands(value: f64) -> String {
    if value >= 1000.0 {
        format!("{}k", (value / 100.0).round() / 10.0)
    } else {
        format!("{value:.0}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_point_lies_in_the_chart() {
        let mut plot = Plot::new("p", "relays");
        plot.push(1, 0.0);
        plot.push(100_000, 199_000.0);
        let svg = plot.to_svg();
        assert!(svg.contains("points=\"70.0,216.0 540.0,36.9\""), "{svg}");
        assert!(svg.contains(">200k<") && svg.contains(">100k<"), "{svg}");
    }

    #[test]
    #[expect(clippy::float_cmp, reason = "small integers are exact")]
    fn ceilings_are_round() {
        assert_eq!(
            [1.0, 150_000.0, 210_000.0, 999.0].map(ceiling),
            [1.0, 200_000.0, 400_000.0, 1000.0]
        );
    }
}
