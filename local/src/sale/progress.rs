//! How the sale goes, while it goes: bars on a terminal, a line every two seconds elsewhere.

use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use super::Sale;
use crate::report::{count, millis};

const LINE_EVERY: Duration = Duration::from_secs(2);

/// Where progress goes.
pub enum Progress {
    /// Nowhere.
    Quiet,
    /// A line to standard error from time to time.
    Lines { people: u64, next: Duration },
    /// Live bars.
    Bars(Box<Bars>),
}

/// The bars of a sale.
pub struct Bars {
    all: MultiProgress,
    people: ProgressBar,
    granted: ProgressBar,
    sold_out: ProgressBar,
    status: ProgressBar,
}

impl Progress {
    /// Progress of a sale to this many people.
    pub fn new(people: u64, quiet: bool, terminal: bool) -> Self {
        match (quiet, terminal) {
            (true, _) => Self::Quiet,
            (false, false) => Self::Lines { people, next: LINE_EVERY },
            (false, true) => Self::Bars(Box::new(Bars::new(people))),
        }
    }

    /// Shows where the sale stands.
    pub fn show(&mut self, sale: &Sale, elapsed: Duration) {
        match self {
            Self::Quiet => {}
            Self::Lines { people, next } => {
                if elapsed >= *next {
                    *next = elapsed + LINE_EVERY;
                    let (left, granted) = (count(sale.people), count(sale.granted()));
                    eprintln!("sale: {left} of {} people, {granted} granted, {}", count(*people), status(sale));
                }
            }
            Self::Bars(bars) => bars.show(sale),
        }
    }

    /// Takes the bars off the terminal.
    pub fn finish(self) {
        if let Self::Bars(bars) = self {
            for bar in [&bars.people, &bars.granted, &bars.sold_out, &bars.status] {
                bar.finish_and_clear();
            }
            // Nothing is left to draw; a terminal that went away is no reason to fail the sale.
            let _ = bars.all.clear();
        }
    }
}

impl Bars {
    fn new(people: u64) -> Self {
        let all = MultiProgress::new();
        let bar = |name: &'static str, colour: &str, extra: &str| {
            let template = format!("{{prefix:>10}} [{{wide_bar:.{colour}}}] {{human_pos:>9}} {extra}");
            let style = ProgressStyle::with_template(&template).unwrap_or_else(|_| ProgressStyle::default_bar());
            all.add(ProgressBar::new(people).with_style(style.progress_chars("━╸ ")).with_prefix(name))
        };
        let status = ProgressStyle::with_template("           {msg}").unwrap_or_else(|_| ProgressStyle::default_bar());
        Self {
            people: bar("people", "cyan", "{eta:>5} left"),
            granted: bar("granted", "green", "          "),
            sold_out: bar("sold out", "yellow", "          "),
            status: all.add(ProgressBar::new_spinner().with_style(status)),
            all,
        }
    }

    fn show(&self, sale: &Sale) {
        self.people.set_position(sale.people);
        self.granted.set_position(sale.granted());
        self.sold_out.set_position(sale.sold_out);
        // A quantile walks the histogram: often enough for the eye, too dear for each event.
        if sale.requests.is_multiple_of(256) {
            self.status.set_message(status(sale));
        }
    }
}

fn status(sale: &Sale) -> String {
    format!(
        "{} repeated, {} sold out, {} errors, {} median, {} p99",
        count(sale.repeated),
        count(sale.sold_out),
        count(sale.errors),
        millis(sale.latency_ms(0.5)),
        millis(sale.latency_ms(0.99)),
    )
}
