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
mod organiser;
mod phases;
mod plan;
mod print;
mod progress;
mod reply;
mod reports;
mod run;
mod timeline;
mod torment;
mod watch;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use crate::exec::stop_signal;
use crate::functions::Profile;
use crate::servers::{Choice, Fsync, RunDir, workspace_root};
use crate::up::{Options, Stack, queues};

use plan::Plan;
use run::{Outcome, Run};

/// How old a sign-up may be before it is sent again; deployed it is 60 s, too long for several outages in some minutes.
const OUTBOX_GRACE_SECS: u64 = 5;

/// How often `reconcile` runs; deployed it is each minute.
const RECONCILE_EVERY: Duration = Duration::from_secs(5);

const OWN_SERVERS: &str = "chaos kills and freezes servers, so it takes none that were given; unset ONRUSH_SERVERS";

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
    /// How many queues share the sign-ups [default: 1 to 3, by the seed]
    #[arg(long, value_name = "N", value_parser = queues())]
    queues: Option<u16>,
    /// How to build the functions
    #[arg(long, value_enum, default_value_t = Profile::Release)]
    profile: Profile,
    /// Where to write the files
    #[arg(long, value_name = "DIR", default_value_os_t = workspace_root().join("target/local"))]
    out: PathBuf,
    /// Only print what would fail when
    #[arg(long)]
    dry_run: bool,
}

fn minutes(text: &str) -> anyhow::Result<f64> {
    let minutes: f64 = text.parse()?;
    anyhow::ensure!((0.1..=120.0).contains(&minutes), "from 0.1 to 120 minutes");
    Ok(minutes)
}

/// One queue in a third of the runs, since most have one.
fn queues_of(seed: u64) -> u16 {
    1 + (seed % 3) as u16
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
    fn fresh(dir: &Path) -> anyhow::Result<Self> {
        std::fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
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
    let queues = args.queues.unwrap_or_else(|| queues_of(seed));
    let length = args.minutes;
    eprintln!("Chaos of seed {seed}, {length} minutes, {queues} queue(s): {} faults", plan.in_order().len());
    for fault in plan.in_order() {
        eprintln!("  {fault}");
    }
    if args.dry_run {
        return Ok(ExitCode::SUCCESS);
    }
    ensure!(Choice::from_env()? != Choice::Given, OWN_SERVERS);
    let files = Files::fresh(&args.out)?;
    let run_dir = RunDir::create("chaos")?;
    eprintln!("Starting Redis, RabbitMQ, MySQL and the functions; logs in {}", run_dir.path().display());
    let held = hold(&args, seed, &plan, &files, &run_dir).await;
    let failures = match &held {
        Ok(Some(outcome)) => Some(outcome.failures()),
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
        queues: args.queues.unwrap_or_else(|| queues_of(seed)),
        ..Options::new(args.profile)
    };
    let mut stack = tokio::select! {
        stack = Stack::start_as(run_dir.path(), &options) => stack?,
        () = stop_signal() => return Ok(None),
    };
    eprintln!("Everything is up after {:.1} s", begun.elapsed().as_secs_f64());
    let outcome = tokio::select! {
        outcome = Run::hold(args, seed, plan, files, &mut stack) => outcome.map(Some),
        () = stop_signal() => Ok(None),
    };
    eprintln!("Stopping everything");
    let stopped = stack.stop().await;
    let outcome = outcome?;
    stopped.context("stopping the stack")?;
    Ok(outcome)
}
