//! How the chaos goes, while it goes: a bar on a terminal, lines elsewhere; each fault is a line on both.

use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tokio::sync::watch;

use super::history::{Entry, Recorder};
use super::torment::Marks;
use super::watch::Look;
use crate::report::count;

const SHOW_EVERY: Duration = Duration::from_millis(500);
const LINE_EVERY_MS: u64 = 15_000;

/// Shows where the run stands.
pub struct Progress {
    ends_ms: u64,
    marks: Marks,
    recorder: Arc<Recorder>,
    last: watch::Receiver<Look>,
    bar: Option<ProgressBar>,
    seen: usize,
    open: u64,
    next_line_ms: u64,
}

impl Progress {
    /// Of a run that ends then.
    pub fn new(ends_ms: u64, marks: Marks, recorder: Arc<Recorder>, last: watch::Receiver<Look>) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let template = "{elapsed_precise} [{wide_bar:.cyan}] {msg}";
            let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(ends_ms).with_style(style.progress_chars("━╸ "))
        });
        Self { ends_ms, marks, recorder, last, bar, seen: 0, open: 0, next_line_ms: LINE_EVERY_MS }
    }

    /// Shows it until it is dropped.
    pub async fn run(mut self) {
        let mut news = self.marks.news();
        let mut tick = tokio::time::interval(SHOW_EVERY);
        loop {
            tokio::select! {
                Ok(line) = news.recv() => self.tell(&line),
                _ = tick.tick() => self.show(),
            }
        }
    }

    fn tell(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.println(line),
            None => eprintln!("{line}"),
        }
    }

    fn show(&mut self) {
        let (seen, open) = self.recorder.since(self.seen, |entry: &Entry| entry.outcome.is_open());
        let now_ms = self.marks.now_ms();
        self.seen = seen;
        self.open += open.into_iter().filter(|open| *open).count() as u64;
        let look = self.last.borrow().clone();
        let number = |number: Option<u64>| number.map_or_else(|| "?".to_owned(), count);
        let outbox = look.outbox.as_ref().map(|notes| notes.len() as u64);
        let status = format!(
            "{} requests, {} without a clear reply; {} in the outbox, {} in the queue",
            count(self.seen as u64),
            count(self.open),
            number(outbox),
            number(look.backlog),
        );
        match &self.bar {
            Some(bar) => {
                bar.set_position(now_ms.min(self.ends_ms));
                bar.set_message(status);
            }
            None if now_ms >= self.next_line_ms => {
                self.next_line_ms = now_ms + LINE_EVERY_MS;
                eprintln!("{:6.1} s  {status}", now_ms as f64 / 1_000.0);
            }
            None => {}
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
