//! The schedule of `reconcile`, as EventBridge has it for the deployed one.
//!
//! Invariants: one run at a time; a run that fails is told of, and the next one comes all the same; no run is waited
//! for without a limit.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior};

/// The longest that a run may take.
const RUN_LIMIT: Duration = Duration::from_secs(120);

/// What a schedule is configured with.
#[derive(Debug, Clone)]
pub struct Settings {
    /// From the start of one run to the start of the next; the first one comes after as long.
    pub every: Duration,
    /// Where to add what each run reported, one JSON document a line.
    pub reports: Option<PathBuf>,
}

/// What a schedule has done so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    /// Runs that reported.
    pub runs: u64,
    /// Runs that failed.
    pub failures: u64,
    /// The last of these failures, until a run succeeds.
    pub problem: Option<String>,
}

/// A running schedule; dropping it ends it, whatever becomes of a run under way.
#[derive(Debug)]
pub struct Schedule {
    task: JoinHandle<()>,
    progress: watch::Receiver<Progress>,
}

impl Schedule {
    /// Starts to hand scheduled events to `invoke`, which gives the report of the run.
    pub fn start<F, Fut>(settings: Settings, invoke: F) -> Self
    where
        F: Fn(Value) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = anyhow::Result<Value>> + Send + 'static,
    {
        let (told, progress) = watch::channel(Progress::default());
        let task = tokio::spawn(async move {
            let mut tick = tokio::time::interval_at(Instant::now() + settings.every, settings.every);
            tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                tick.tick().await;
                let report = tokio::time::timeout(RUN_LIMIT, invoke(event())).await;
                let done = report.context("no answer in time").flatten().and_then(|report| keep(&settings, &report));
                told.send_modify(|progress| progress.note(done));
            }
        });
        Self { task, progress }
    }

    /// What it has done so far, and news of it.
    #[must_use]
    pub fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.clone()
    }
}

impl Drop for Schedule {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Progress {
    fn note(&mut self, done: anyhow::Result<()>) {
        match done {
            Ok(()) => {
                self.runs += 1;
                self.problem = None;
            }
            Err(error) => {
                self.failures += 1;
                self.problem = Some(format!("{error:#}"));
            }
        }
    }
}

/// The part of EventBridge's event by which a function knows it.
fn event() -> Value {
    json!({"detail-type": "Scheduled Event", "source": "aws.events", "detail": {}})
}

fn keep(settings: &Settings, report: &Value) -> anyhow::Result<()> {
    let Some(path) = &settings.reports else { return Ok(()) };
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
    file.and_then(|mut file| writeln!(file, "{report}")).with_context(|| format!("writing {}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use anyhow::bail;

    use super::*;

    fn every(ms: u64) -> Settings {
        Settings { every: Duration::from_millis(ms), reports: None }
    }

    async fn until(schedule: &Schedule, condition: impl FnMut(&Progress) -> bool) -> Progress {
        let mut progress = schedule.progress();
        let seen = tokio::time::timeout(Duration::from_secs(10), progress.wait_for(condition)).await;
        seen.unwrap().unwrap().clone()
    }

    #[tokio::test]
    async fn a_run_that_fails_is_told_of_and_the_next_one_comes() {
        let runs = Arc::new(AtomicU64::new(0));
        let schedule = Schedule::start(every(5), move |_| {
            let run = runs.fetch_add(1, Ordering::SeqCst);
            async move { if run == 0 { bail!("redis is away") } else { Ok(json!({})) } }
        });
        let failed = until(&schedule, |progress| progress.failures == 1).await;
        assert_eq!(failed.problem.as_deref(), Some("redis is away"));
        assert_eq!(until(&schedule, |progress| progress.runs > 1).await.problem, None);
    }

    #[tokio::test]
    async fn never_two_runs_at_a_time_and_each_report_is_kept() {
        let reports = std::env::temp_dir().join(format!("onrush-schedule-{}", std::process::id()));
        let busy = Arc::new(AtomicU64::new(0));
        let settings = Settings { reports: Some(reports.clone()), ..every(1) };
        let schedule = Schedule::start(settings, move |event| {
            let busy = busy.clone();
            async move {
                anyhow::ensure!(busy.fetch_add(1, Ordering::SeqCst) == 0, "two at a time");
                tokio::time::sleep(Duration::from_millis(5)).await;
                busy.fetch_sub(1, Ordering::SeqCst);
                Ok(json!({"for": event["source"]}))
            }
        });
        let progress = until(&schedule, |progress| progress.runs + progress.failures == 5).await;
        drop(schedule);
        let lines = std::fs::read_to_string(&reports).unwrap();
        std::fs::remove_file(&reports).unwrap();
        assert_eq!((progress.runs, progress.problem), (5, None));
        assert_eq!(lines.lines().next(), Some(r#"{"for":"aws.events"}"#));
    }
}
