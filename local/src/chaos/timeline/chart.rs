//! Panels over one time axis, with the faults as bars above and as bands through all of them; written as SVG.

use std::fmt::Write;

use super::super::plan::{Kind, Part};
use super::super::torment::Mark;

const WIDTH: f64 = 1_100.0;
const LEFT: f64 = 90.0;
const RIGHT: f64 = 10.0;
const ROW: f64 = 20.0;
const PANEL: f64 = 120.0;
const TITLE: f64 = 28.0;

/// Between two marks of the time axis there are at least this many of them, at most twice as many.
const LEAST_TICKS: f64 = 6.0;

/// A line, filled down to the axis. Where there is no number the line has a gap.
pub struct Series {
    /// What it shows; nothing if the title of the panel says so.
    pub label: &'static str,
    /// An HTML colour.
    pub colour: &'static str,
    /// Seconds and numbers.
    pub points: Vec<(f64, Option<f64>)>,
}

/// A chart that grows downwards.
pub struct Chart<'a> {
    seconds: f64,
    marks: &'a [Mark],
    body: String,
    y: f64,
}

impl<'a> Chart<'a> {
    /// A chart of so many seconds that begins with the faults.
    pub fn new(seconds: f64, marks: &'a [Mark]) -> Self {
        let mut chart = Self { seconds: seconds.max(1.0), marks, body: String::new(), y: 0.0 };
        chart.faults();
        chart
    }

    /// Adds a panel. Later series are drawn behind earlier ones.
    pub fn panel(&mut self, title: &str, series: &[Series]) {
        let numbers = series.iter().flat_map(|series| series.points.iter().filter_map(|(_, number)| *number));
        let top = nice(numbers.fold(0.0, f64::max));
        let (above, below) = (self.y + TITLE, self.y + TITLE + PANEL);
        self.text(LEFT, above - 9.0, "start", "#1b2733", title);
        let mut x = LEFT + 190.0;
        for series in series.iter().filter(|series| !series.label.is_empty()) {
            let swatch = above - 18.0;
            self.draw(&format!(
                "<rect x=\"{x:.0}\" y=\"{swatch:.0}\" width=\"10\" height=\"10\" fill=\"{}\"/>",
                series.colour
            ));
            self.text(x + 15.0, above - 9.0, "start", "#52616f", series.label);
            x += 30.0 + 7.0 * series.label.len() as f64;
        }
        self.bands(above, below);
        for (share, number) in [(0.0, 0.0), (0.5, top / 2.0), (1.0, top)] {
            let y = below - share * PANEL;
            self.line(LEFT, y, WIDTH - RIGHT, y);
            self.text(LEFT - 6.0, y + 4.0, "end", "#52616f", &short(number));
        }
        for series in series.iter().rev() {
            self.series(series, below, PANEL / top);
        }
        self.y = below;
    }

    /// Adds the time axis and gives the whole.
    pub fn finish(mut self) -> String {
        let every = step(self.seconds / LEAST_TICKS);
        let mut at = 0.0;
        while at <= self.seconds {
            let (x, y) = (self.x(at), self.y + 16.0);
            self.text(x, y, "middle", "#52616f", &clock(at));
            at += every;
        }
        let height = self.y + 26.0;
        let body = self.body;
        format!("<svg viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\">\n{body}</svg>")
    }

    fn faults(&mut self) {
        for part in Part::ALL {
            let y = self.y;
            self.text(LEFT - 6.0, y + 14.0, "end", "#1b2733", &part.to_string());
            self.line(LEFT, y + ROW, WIDTH - RIGHT, y + ROW);
            for mark in self.marks.iter().filter(|mark| mark.part == part) {
                let (from, to) = self.stretch(mark);
                let (x, width) = (self.x(from), (self.x(to) - self.x(from)).max(2.0));
                let told = format!("{part} {}, {from:.1} s to {to:.1} s", mark.kind);
                self.draw(&format!(
                    "<rect x=\"{x:.1}\" y=\"{:.0}\" width=\"{width:.1}\" height=\"{:.0}\" rx=\"2\" fill=\"{}\"><title>{told}</title></rect>",
                    y + 3.0, ROW - 6.0, colour(mark.kind)
                ));
            }
            self.y += ROW;
        }
        let (mut x, y) = (LEFT, self.y + 8.0);
        for kind in [Kind::Kill, Kind::Freeze, Kind::Stop] {
            self.draw(&format!(
                "<rect x=\"{x:.0}\" y=\"{y:.0}\" width=\"10\" height=\"10\" fill=\"{}\"/>",
                colour(kind)
            ));
            self.text(x + 15.0, y + 9.0, "start", "#52616f", &kind.to_string());
            x += 80.0;
        }
        self.y += 26.0;
    }

    /// The time during which a server or a frozen function was away, through the whole panel. Kills of functions are too
    /// short and too many for that.
    fn bands(&mut self, above: f64, below: f64) {
        for mark in self.marks.iter().filter(|mark| mark.kind == Kind::Freeze || mark.part.function().is_none()) {
            let (from, to) = self.stretch(mark);
            let (x, width) = (self.x(from), self.x(to) - self.x(from));
            self.draw(&format!(
                "<rect x=\"{x:.1}\" y=\"{above:.0}\" width=\"{width:.1}\" height=\"{:.0}\" fill=\"{}\" opacity=\".13\"/>",
                below - above,
                colour(mark.kind)
            ));
        }
    }

    fn stretch(&self, mark: &Mark) -> (f64, f64) {
        let from = mark.from_ms as f64 / 1_000.0;
        (from, mark.to_ms.map_or(self.seconds, |to_ms| to_ms as f64 / 1_000.0).min(self.seconds))
    }

    fn series(&mut self, series: &Series, below: f64, scale: f64) {
        for run in series.points.split(|(_, number)| number.is_none()) {
            let mut path = String::new();
            for (at, number) in run {
                let (x, y) = (self.x(*at), below - number.unwrap_or(0.0) * scale);
                let _ = write!(path, "{}{x:.1} {y:.1}", if path.is_empty() { "M" } else { "L" });
            }
            let (Some((first, _)), Some((last, _))) = (run.first(), run.last()) else { continue };
            let (first, last, colour) = (self.x(*first), self.x(*last), series.colour);
            self.draw(&format!(
                "<path d=\"{path}L{last:.1} {below:.1}L{first:.1} {below:.1}Z\" fill=\"{colour}\" opacity=\".35\"/>\
                 <path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.3\"/>"
            ));
        }
    }

    fn x(&self, at: f64) -> f64 {
        LEFT + at / self.seconds * (WIDTH - LEFT - RIGHT)
    }

    fn text(&mut self, x: f64, y: f64, anchor: &str, colour: &str, text: &str) {
        self.draw(&format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"{colour}\">{text}</text>"));
    }

    fn line(&mut self, x1: f64, y1: f64, x2: f64, y2: f64) {
        self.draw(&format!("<path d=\"M{x1:.1} {y1:.1}L{x2:.1} {y2:.1}\" stroke=\"#dde4ea\"/>"));
    }

    fn draw(&mut self, element: &str) {
        self.body.push_str(element);
        self.body.push('\n');
    }
}

fn colour(kind: Kind) -> &'static str {
    match kind {
        Kind::Kill => "#c62828",
        Kind::Freeze => "#0b6fa4",
        Kind::Stop => "#7a5195",
    }
}

/// The next round number that is not below this one.
fn nice(number: f64) -> f64 {
    let number = number.max(1.0);
    let power = 10_f64.powf(number.log10().floor());
    [1.0, 1.2, 1.6, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0]
        .into_iter()
        .map(|factor| factor * power)
        .find(|nice| *nice >= number)
        .unwrap_or(number)
}

/// A round number of seconds or minutes, at most this long.
fn step(seconds: f64) -> f64 {
    let steps = [1_800.0, 600.0, 300.0, 120.0, 60.0, 30.0, 20.0, 10.0, 5.0, 2.0];
    steps.into_iter().find(|step| *step <= seconds).unwrap_or(1.0)
}

fn clock(seconds: f64) -> String {
    let seconds = seconds as u64;
    format!("{}:{:02}", seconds / 60, seconds % 60)
}

fn short(number: f64) -> String {
    if number >= 10_000.0 { format!("{:.0}k", number / 1_000.0) } else { format!("{number}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_at_round_numbers() {
        assert_eq!([0.0, 1.0, 3.0, 51.0, 200.0, 201.0].map(nice), [1.0, 1.0, 3.0, 60.0, 200.0, 300.0]);
        assert_eq!([300.0, 120.0, 20.0, 0.5].map(|seconds| step(seconds / LEAST_TICKS)), [30.0, 20.0, 2.0, 1.0]);
        assert_eq!((clock(65.0), short(20_000.0), short(0.5)), ("1:05".into(), "20k".into(), "0.5".into()));
    }
}
