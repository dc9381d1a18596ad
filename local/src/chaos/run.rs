//! One run on a running stack: the people and the faults, then healing and the check.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail};
use futures::{StreamExt, stream};
use shared::domain::ActivityId;
use tokio::sync::watch::Receiver;

use super::check::{Held, Verdict, check};
use super::crowd::{self, Asker};
use super::figures::{Figures, HEAL_LIMIT_MS, Runs};
use super::history::{self, Clock, History, Operation, Pair, Recorder};
use super::organiser::Organiser;
use super::phases::Phases;
use super::plan::Plan;
use super::progress::Progress;
use super::reports::Reports;
use super::torment::{Marks, torment};
use super::watch::{self, Look, Sample, Watcher};
use super::{Args, Files, OUTBOX_GRACE_SECS, OWN_SERVERS, ends};
use crate::up::Stack;
use crate::verify::{Drained, Findings, HandedOut, Settings, Underway, drain, verify};

/// On top of the limit for healing, so that the report tells how late it was.
const RESERVE: Duration = Duration::from_secs(30);

/// The longest that the checks may take at the end.
const CHECK_LIMIT: Duration = Duration::from_secs(180);

/// What came of a run.
pub struct Outcome {
    pub figures: Figures,
    pub phases: Phases,
    pub verdict: Verdict,
    pub findings: Findings,
    pub history: History,
    pub samples: Vec<Sample>,
    left: Underway,
    organised: anyhow::Result<u64>,
}

/// What a run needs to know while it goes on.
pub struct Run {
    settings: Settings,
    crowd: crowd::Settings,
    ends_ms: u64,
    clock: Clock,
    recorder: Arc<Recorder>,
    asker: Asker,
    marks: Marks,
}

/// What is known once nothing is on its way any more.
struct End {
    heal_ms: Option<u64>,
    organised: anyhow::Result<u64>,
    drained: Drained,
    unsettled: u64,
    findings: Findings,
    held: [Held; 2],
}

impl Outcome {
    /// What went wrong, in words; nothing if the run succeeded.
    pub fn failures(&self) -> Vec<String> {
        let mut failures = self.figures.failures(self.left);
        failures.extend(self.organised.as_ref().err().map(|error| format!("{error:#}")));
        failures
    }
}

impl Run {
    /// Lets people come while parts fail, lets it heal, and checks.
    pub async fn hold(
        args: &Args,
        seed: u64,
        plan: &Plan,
        files: &Files,
        stack: &mut Stack,
    ) -> anyhow::Result<Outcome> {
        let activities: Vec<_> = (1..=u64::from(args.activities)).map(ActivityId::new).collect();
        let recorder = Arc::new(Recorder::create(&files.history)?);
        let organiser = Organiser::create(stack.base_url(), seed, &activities, recorder.clone()).await?;
        let settings = Settings::from_variables(&stack.env())?;
        let clock = Clock::start();
        let queues = settings.topology()?.queue_names();
        let watcher = Watcher::new(clock, stack.servers.as_ref().context(OWN_SERVERS)?, &queues, &activities)?;
        let crowd =
            crowd::Settings { seed, people: args.people, activities, rate: args.rate, at_once: args.concurrency };
        let asker = Asker::new(stack.base_url(), clock, recorder.clone())?;
        let ends_ms = (args.minutes * 60_000.0) as u64;
        let run = Self { settings, crowd, ends_ms, clock, recorder, asker, marks: Marks::new(clock) };

        let (runs, last, samples) = (stack.schedule.progress(), watcher.last(), watcher.samples());
        let progress = Progress::new(ends_ms, run.marks.clone(), run.recorder.clone(), last.clone());
        let end = tokio::select! {
            end = run.until_the_end(organiser, last) => end,
            error = torment(stack, plan, &run.marks) => error.map(|never| match never {}),
            () = watcher.run() => bail!("the watcher ended"),
            () = progress.run() => bail!("the progress ended"),
        }?;
        let samples = samples.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let runs = runs.borrow().clone();
        let reports = Reports::read(&files.reports)?;
        run.judge(args, end, samples, Runs { reported: runs.runs, failed: runs.failures }, reports)
    }

    /// Lets the people come, waits until everything has arrived, and reads what there is then.
    async fn until_the_end(&self, organiser: Organiser, last: Receiver<Look>) -> anyhow::Result<End> {
        let (come, organised, heal_ms) = tokio::join!(
            crowd::come(&self.crowd, &self.asker, self.ends_ms),
            organiser.add_places(self.clock, self.ends_ms),
            self.healed(last),
        );
        come?;
        let limit = Duration::from_millis(HEAL_LIMIT_MS) + RESERVE;
        let drained = drain(&self.settings, None, limit).await.context("waiting until nothing is on its way")?;
        let check = async {
            let findings = verify(&self.settings, None, &HandedOut::default()).await?;
            let held = ends::read(&self.settings).await?;
            let unsettled = self.look_at_every_receipt(&held).await;
            anyhow::Ok(End { heal_ms, organised, drained, unsettled, findings, held })
        };
        tokio::time::timeout(CHECK_LIMIT, check).await.context("the checks took too long")?
    }

    /// How long it took after the last fault until everything that was on its way then had arrived.
    async fn healed(&self, last: Receiver<Look>) -> Option<u64> {
        let reserve_ms = u64::try_from(RESERVE.as_millis()).unwrap_or(0);
        let healed = async {
            let mut over = self.marks.over();
            let over_ms = over.wait_for(Option::is_some).await.ok().and_then(|over| *over)?;
            let until_ms = over_ms + HEAL_LIMIT_MS + reserve_ms;
            let healed_ms = watch::arrived(last, self.clock, over_ms, until_ms).await?;
            Some(healed_ms - over_ms)
        };
        // A server that takes long to come back must not keep us for ever.
        let limit = Duration::from_millis(self.ends_ms + 2 * HEAL_LIMIT_MS);
        tokio::time::timeout(limit, healed).await.ok().flatten()
    }

    /// Asks for everyone's receipt, as a person would, and counts those that do not say confirmed or cancelled.
    async fn look_at_every_receipt(&self, held: &[Held]) -> u64 {
        let everyone: BTreeSet<&Pair> = held.iter().flat_map(|held| held.people.keys()).collect();
        let looks = stream::iter(everyone).map(|pair| self.asker.ask(Operation::Look, pair));
        let unsettled = |outcome: &history::Outcome| match outcome {
            history::Outcome::Held { queued, .. } => *queued,
            history::Outcome::WasCancelled { .. } => false,
            _ => true,
        };
        let looks = looks.buffer_unordered(self.crowd.at_once as usize);
        looks.filter(|outcome| std::future::ready(unsettled(outcome))).count().await as u64
    }

    fn judge(
        &self,
        args: &Args,
        end: End,
        samples: Vec<Sample>,
        runs: Runs,
        reports: Reports,
    ) -> anyhow::Result<Outcome> {
        let history = self.recorder.finish()?;
        let marks = self.marks.all();
        let (verdict, phases) = (check(&history, &end.held), Phases::of(&history, &marks));
        let mut figures = Figures {
            seed: self.crowd.seed,
            minutes: args.minutes,
            faults: marks.len() as u64,
            heal_ms: end.heal_ms,
            drain_ms: u64::try_from(end.drained.took.as_millis()).unwrap_or(u64::MAX),
            unsettled: end.unsettled,
            relayed: reports.relayed,
            mended: reports.mended,
            requests: history.entries.len() as u64,
            resizes: end.organised.as_ref().copied().unwrap_or(0),
            ended_by_themselves: self.marks.ended().len() as u64,
            reconcile: runs,
            outbox_grace_secs: OUTBOX_GRACE_SECS,
            marks,
            ..Figures::default()
        };
        figures.judge(&verdict, &end.findings, &phases);
        let (left, findings, organised) = (end.drained.left, end.findings, end.organised);
        Ok(Outcome { figures, phases, verdict, findings, history, samples, left, organised })
    }
}
