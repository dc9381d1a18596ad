//! `make chaos`: a sale of many activities while a seeded plan kills, freezes and stops every part; then everything
//! heals, and every reply is held against what MySQL and Redis hold.
//!
//! Invariants: the plan follows from the seed and the length alone; every wait is bounded, so that the run ends also
//! when a part does not come back; whatever happens, everything that was started is stopped.
//!
//! Files, of the last run: `target/local/chaos.json` (the figures), `chaos.html` (a timeline), `chaos-history.jsonl`
//! (every request and its reply) and `chaos-reconcile.jsonl` (what each run of `reconcile` reported).

mod check;
mod crowd;
mod ends;
mod figures;
mod history;
mod phases;
mod plan;
mod print;
mod progress;
mod reply;
mod timeline;
mod torment;
mod watch;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use futures::{StreamExt, stream};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use reqwest::StatusCode;
use serde_json::json;
use shared::domain::ActivityId;

use crate::exec::stop_signal;
use crate::functions::Profile;
use crate::servers::{Fsync, RunDir, workspace_root};
use crate::up::{Options, Stack};
use crate::verify::{Drained, Findings, HandedOut, Settings, Underway, drain, verify};

use check::Verdict;
use crowd::Asker;
use figures::{Figures, HEAL_LIMIT_MS, Runs};
use history::{Clock, History, Operation, Pair, Places, Recorder};
use phases::Phases;
use plan::Plan;
use progress::Progress;
use torment::Marks;
use watch::{Sample, Watcher};

/// How old a sign-up may be before it is sent again; deployed it is 60 s, too long for several outages in some minutes.
const OUTBOX_GRACE_SECS: u64 = 5;

/// How often `reconcile` runs; deployed it is each minute.
const RECONCILE_EVERY: Duration = Duration::from_secs(5);

/// On top of the limit for healing, so that the report tells how late it was.
const RESERVE: Duration = Duration::from_secs(30);

/// The longest that the checks may take at the end.
const CHECK_LIMIT: Duration = Duration::from_secs(180);

const PLACES: std::ops::RangeInclusive<u64> = 15..=45;
const FIRST_ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// Options of `local chaos`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = "\
The functions run with OUTBOX_GRACE_SECS=5 (deployed: 60) and reconcile each 5 s (deployed: each minute), so that
several outages fit into some minutes. Redis writes to its file before it answers: a killed Redis loses nothing, which
is what is tested here. Only one server is away at a time; functions are killed at any time.")]
pub struct Args {
    /// The same seed fails the same parts at the same times [default: another one each time]
    #[arg(long)]
    seed: Option<u64>,
    /// How long people come; then it heals and is checked
    #[arg(long, default_value_t = 5.0, value_name = "M", value_parser = minutes)]
    minutes: f64,
    /// Requests a second
    #[arg(long, default_value_t = 200, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=2_000))]
    rate: u32,
    /// Activities, of 15 to 45 places each
    #[arg(long, default_value_t = 24, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    activities: u32,
    /// People
    #[arg(long, default_value_t = 400, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    people: u32,
    /// Requests under way at a time; more than 100 waiting would stop `cargo lambda watch` for good
    #[arg(long, default_value_t = 24, value_name = "C", value_parser = clap::value_parser!(u32).range(1..=32))]
    concurrency: u32,
    /// How to build the functions
    #[arg(long, value_enum, default_value_t = Profile::Release)]
    profile: Profile,
    /// Only print what would fail when
    #[arg(long)]
    dry_run: bool,
}

fn minutes(text: &str) -> anyhow::Result<f64> {
    let minutes: f64 = text.parse()?;
    anyhow::ensure!((0.1..=120.0).contains(&minutes), "from 0.1 to 120 minutes");
    Ok(minutes)
}

/// What came of a run.
struct Outcome {
    figures: Figures,
    phases: Phases,
    verdict: Verdict,
    findings: Findings,
    left: Underway,
    history: History,
    samples: Vec<Sample>,
}

/// Where the files of the last run are.
struct Files {
    json: PathBuf,
    html: PathBuf,
    history: PathBuf,
    reports: PathBuf,
}

impl Files {
    /// Names them, without those of an earlier run.
    fn fresh() -> anyhow::Result<Self> {
        let dir = workspace_root().join("target/local");
        std::fs::create_dir_all(&dir).with_context(|| format!("creating {}", dir.display()))?;
        let fresh = |name: &str| {
            let path = dir.join(name);
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    Err(error).with_context(|| format!("removing the old {}", path.display()))
                }
                _ => Ok(path),
            }
        };
        Ok(Self {
            json: fresh("chaos.json")?,
            html: fresh("chaos.html")?,
            history: fresh("chaos-history.jsonl")?,
            reports: fresh("chaos-reconcile.jsonl")?,
        })
    }
}

/// Runs the chaos, prints its report and stops everything again.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let seed = args.seed.unwrap_or_else(|| rand::random_range(0..1_000_000));
    let plan = Plan::of(seed, Duration::from_secs_f64(args.minutes * 60.0));
    eprintln!("Chaos of seed {seed}, {} minutes: {} faults", args.minutes, plan.in_order().len());
    for fault in plan.in_order() {
        eprintln!("  {fault}");
    }
    if args.dry_run {
        return Ok(ExitCode::SUCCESS);
    }
    let files = Files::fresh()?;
    let run_dir = RunDir::create("chaos")?;
    eprintln!("Starting Redis, RabbitMQ, MySQL and the functions; logs in {}", run_dir.path().display());
    let held = hold(&args, seed, &plan, &files, &run_dir).await;
    let failures = match &held {
        Ok(Some(outcome)) => Some(outcome.figures.failures(outcome.left)),
        Ok(None) | Err(_) => None,
    };
    let logs = run_dir.finish(failures.as_ref().is_some_and(Vec::is_empty))?;
    let told = logs.as_ref().map_or_else(String::new, |logs| format!("; the logs are in {}", logs.display()));
    let outcome = match held {
        Ok(Some(outcome)) => outcome,
        Ok(None) => {
            eprintln!("Stopped before the end{told}");
            return Ok(ExitCode::from(130));
        }
        Err(error) => {
            eprintln!("The chaos of seed {seed} broke off{told}");
            return Err(error);
        }
    };
    let failures = failures.unwrap_or_default();
    print!("{}", print::report(&outcome, &failures, logs.as_deref()));
    write(&outcome, &failures, &files)?;
    println!("  The timeline is in {}", files.html.display());
    println!("  The figures are in {}, every request in {}", files.json.display(), files.history.display());
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn write(outcome: &Outcome, failures: &[String], files: &Files) -> anyhow::Result<()> {
    let json = serde_json::to_string_pretty(&outcome.figures)? + "\n";
    std::fs::write(&files.json, json).with_context(|| format!("writing {}", files.json.display()))?;
    let html = timeline::page(&outcome.figures, &outcome.history, &outcome.samples, failures);
    std::fs::write(&files.html, html).with_context(|| format!("writing {}", files.html.display()))
}

/// Starts the stack, runs the chaos and stops the stack; nothing comes of it where someone asked us to stop.
async fn hold(args: &Args, seed: u64, plan: &Plan, files: &Files, run_dir: &RunDir) -> anyhow::Result<Option<Outcome>> {
    let begun = Instant::now();
    let options = Options {
        settings: vec![("OUTBOX_GRACE_SECS".to_owned(), OUTBOX_GRACE_SECS.to_string())],
        reconcile_every: RECONCILE_EVERY,
        reports: Some(files.reports.clone()),
        fsync: Fsync::EachWrite,
        ..Options::new(args.profile)
    };
    let mut stack = tokio::select! {
        stack = Stack::start_as(run_dir.path(), &options) => stack?,
        () = stop_signal() => return Ok(None),
    };
    eprintln!("Everything is up after {:.1} s", begun.elapsed().as_secs_f64());
    let outcome = tokio::select! {
        outcome = sell_and_check(args, seed, plan, files, &mut stack) => outcome.map(Some),
        () = stop_signal() => Ok(None),
    };
    eprintln!("Stopping everything");
    let stopped = stack.stop().await;
    let outcome = outcome?;
    stopped.context("stopping the stack")?;
    Ok(outcome)
}

/// What a run needs to know while it goes on.
struct Run {
    settings: Settings,
    crowd: crowd::Settings,
    ends_ms: u64,
    clock: Clock,
    recorder: Arc<Recorder>,
    asker: Asker,
    marks: Marks,
}

/// The sale, the faults, and the checks.
async fn sell_and_check(
    args: &Args,
    seed: u64,
    plan: &Plan,
    files: &Files,
    stack: &mut Stack,
) -> anyhow::Result<Outcome> {
    let activities: Vec<_> = (1..=u64::from(args.activities)).map(ActivityId::new).collect();
    let recorder = Arc::new(Recorder::create(&files.history)?);
    create(stack.base_url(), seed, &activities, &recorder).await?;
    let clock = Clock::start();
    let settings = Settings::from_variables(&stack.servers.env())?;
    let watcher = Watcher::new(clock, &stack.servers, &settings.queue, &activities)?;
    let run = Run {
        crowd: crowd::Settings { seed, people: args.people, activities, rate: args.rate, at_once: args.concurrency },
        settings,
        ends_ms: (args.minutes * 60_000.0) as u64,
        clock,
        asker: Asker::new(stack.base_url(), clock, recorder.clone())?,
        recorder,
        marks: Marks::new(clock),
    };
    let runs = stack.schedule.progress();
    let (last, samples) = (watcher.last(), watcher.samples());
    let progress = Progress::new(run.ends_ms, run.marks.clone(), run.recorder.clone(), last.clone());
    let come = tokio::select! {
        done = come_and_drain(&run, last) => done,
        error = torment::torment(stack, plan, &run.marks) => error.map(|never| match never {}),
        () = watcher.run() => bail!("the watcher ended"),
        () = progress.run() => bail!("the progress ended"),
    }?;
    let samples = samples.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let runs = runs.borrow().clone();
    let runs = Runs { reported: runs.runs, failed: runs.failures };
    judge(args, seed, &run, come, samples, runs)
}

/// What is known once nothing is on its way any more.
struct Drain {
    heal_ms: Option<u64>,
    drained: Drained,
    unsettled: u64,
    findings: Findings,
    held: [check::Held; 2],
}

/// Lets the people come, waits until everything has arrived, and reads what there is then.
async fn come_and_drain(run: &Run, last: tokio::sync::watch::Receiver<watch::Look>) -> anyhow::Result<Drain> {
    let come = crowd::come(&run.crowd, &run.asker, run.ends_ms);
    let heal = async {
        let mut over = run.marks.over();
        let over_ms = over.wait_for(Option::is_some).await.ok().and_then(|over| *over)?;
        let limit_ms = over_ms + HEAL_LIMIT_MS + u64::try_from(RESERVE.as_millis()).unwrap_or(0);
        let healed_ms = watch::arrived(last, run.clock, over_ms, limit_ms).await?;
        Some(healed_ms - over_ms)
    };
    let (come, heal_ms) = tokio::join!(come, within_the_run(run, heal));
    come?;
    let limit = Duration::from_millis(HEAL_LIMIT_MS) + RESERVE;
    let drained = drain(&run.settings, None, limit).await.context("waiting until nothing is on its way")?;
    let check = async {
        let findings = verify(&run.settings, None, &HandedOut::default()).await?;
        let held = ends::read(&run.settings).await?;
        let unsettled = look_at_every_receipt(run, &held).await;
        anyhow::Ok((findings, held, unsettled))
    };
    let (findings, held, unsettled) =
        tokio::time::timeout(CHECK_LIMIT, check).await.context("checking takes long")??;
    Ok(Drain { heal_ms, drained, unsettled, findings, held })
}

/// A fault that lasts longer than planned must not keep us for ever.
async fn within_the_run(run: &Run, heal: impl Future<Output = Option<u64>>) -> Option<u64> {
    let limit = Duration::from_millis(run.ends_ms + 2 * HEAL_LIMIT_MS) + RESERVE;
    tokio::time::timeout(limit, heal).await.ok().flatten()
}

/// Asks for everyone's receipt, as a person would, and counts those that do not say confirmed or cancelled.
async fn look_at_every_receipt(run: &Run, held: &[check::Held; 2]) -> u64 {
    let [mysql, redis] = held;
    let everyone: std::collections::BTreeSet<&Pair> = mysql.people.keys().chain(redis.people.keys()).collect();
    let looks = stream::iter(everyone).map(|pair| run.asker.ask(Operation::Look, pair));
    let unsettled = |outcome: &history::Outcome| match outcome {
        history::Outcome::Held { queued, .. } => *queued,
        history::Outcome::WasCancelled { .. } => false,
        _ => true,
    };
    let looks = looks.buffer_unordered(run.crowd.at_once as usize);
    looks.filter(|outcome| std::future::ready(unsettled(outcome))).count().await as u64
}

fn judge(args: &Args, seed: u64, run: &Run, drain: Drain, samples: Vec<Sample>, runs: Runs) -> anyhow::Result<Outcome> {
    let history = run.recorder.finish()?;
    let marks = run.marks.all();
    let (verdict, phases) = (check::check(&history, &drain.held), Phases::of(&history, &marks));
    let mut figures = Figures {
        seed,
        minutes: args.minutes,
        faults: marks.len() as u64,
        heal_ms: drain.heal_ms,
        drain_ms: u64::try_from(drain.drained.took.as_millis()).unwrap_or(u64::MAX),
        unsettled: drain.unsettled,
        requests: history.entries.len() as u64,
        ended_by_themselves: run.marks.ended().len() as u64,
        reconcile: runs,
        outbox_grace_secs: OUTBOX_GRACE_SECS,
        marks,
        ..Figures::default()
    };
    figures.judge(&verdict, &drain.findings, &phases);
    let (findings, left) = (drain.findings, drain.drained.left);
    Ok(Outcome { figures, phases, verdict, findings, left, history, samples })
}

/// Creates the activities over the API, as an organiser would, and asks once for a receipt, so that the people find
/// functions that have started.
async fn create(base_url: &str, seed: u64, ids: &[ActivityId], recorder: &Recorder) -> anyhow::Result<()> {
    let client = crate::https::client_builder().timeout(FIRST_ANSWER_WITHIN).build()?;
    let mut rng = StdRng::seed_from_u64(seed);
    for &activity in ids {
        let capacity = rng.random_range(PLACES);
        recorder.note_places(Places { began_ms: 0, activity, capacity });
        let body = json!({"title": "Chaos", "capacity": capacity, "opensAt": null, "closesAt": null, "state": "open"});
        let put = client.put(format!("{base_url}/activities/{activity}")).header("x-user-id", "organiser").json(&body);
        let response = put.send().await.context("creating the activities")?;
        let status = response.status();
        if status != StatusCode::CREATED {
            bail!("creating activity {activity}: {status} {}", response.text().await.unwrap_or_default());
        }
        let get = client.get(format!("{base_url}/activities/{activity}/signups/me")).header("x-user-id", "passer-by");
        let status = get.send().await.context("waiting for the signup function")?.status();
        if status != StatusCode::NOT_FOUND {
            bail!("the signup function answered {status} to a passer-by, not 404");
        }
    }
    Ok(())
}
