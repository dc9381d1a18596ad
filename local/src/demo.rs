//! `make demo`: the whole system comes up, a crowd rushes at a few places, and every promise is checked.
//!
//! Whatever happens, an error or Ctrl-C included, everything that was started is stopped. `target/local/demo.json`
//! holds the figures of the last demo that got as far as having some.

mod figures;
mod print;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use reqwest::StatusCode;
use serde_json::json;
use shared::domain::ActivityId;

use crate::exec::stop_signal;
use crate::functions::Profile;
use crate::sale::{self, Plan, Sale};
use crate::servers::{Choice, RunDir, workspace_root};
use crate::up::{Options, Stack, queues};
use crate::verify::{Drained, Findings, HandedOut, Settings, drain, verify};
pub use figures::{Figures, Latency};

/// How many are granted one after the other in a second activity, after the figures were taken.
const ALONE_PLACES: u64 = 200;

const USER_HEADER: &str = "x-user-id";
const FIRST_ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// Options of `local demo`.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Places of the activity
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    places: u32,
    /// People who want one
    #[arg(long, default_value_t = 5_000, value_name = "N")]
    people: u64,
    /// Connections that ask at once; more than 100 would stop `cargo lambda watch` for good
    #[arg(long, default_value_t = 64, value_name = "C", value_parser = clap::value_parser!(u32).range(1..=100))]
    concurrency: u32,
    /// The same seed brings the same people
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How long the places may take to reach MySQL
    #[arg(long, default_value_t = 60, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3_600))]
    drain_secs: u64,
    /// How to build the functions
    #[arg(long, value_enum, default_value_t = Profile::Release)]
    profile: Profile,
    /// How many queues share the sign-ups
    #[arg(long, env = "SIGNUP_QUEUES", default_value_t = 1, value_name = "N", value_parser = queues())]
    queues: u16,
}

/// What came of a demo.
struct Outcome {
    figures: Figures,
    sale: Sale,
    drained: Drained,
    findings: Findings,
    alone: Sale,
}

/// Holds the demo, prints its report and stops everything again.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let json_file = json_file();
    if json_file.exists() {
        std::fs::remove_file(&json_file).with_context(|| format!("removing the old {}", json_file.display()))?;
    }
    let run_dir = RunDir::create("demo")?;
    eprintln!("Starting {}; logs in {}", Choice::from_env()?.starts(), run_dir.path().display());
    let held = hold(&args, &run_dir).await;
    let failures = match &held {
        Ok(Some(outcome)) => Some(outcome.figures.failures(&outcome.findings)),
        Ok(None) | Err(_) => None,
    };
    let logs = run_dir.finish(failures.as_ref().is_some_and(Vec::is_empty))?;
    let outcome = match held {
        Ok(Some(outcome)) => outcome,
        Ok(None) => {
            eprintln!("Stopped before the end; {}", print::where_to_look(logs.as_deref()));
            return Ok(ExitCode::from(130));
        }
        Err(error) => {
            eprintln!("The demo broke off; {}", print::where_to_look(logs.as_deref()));
            return Err(error);
        }
    };
    let failures = failures.unwrap_or_default();
    print!("{}", print::report(&args, &outcome, &failures, logs.as_deref()));
    write(&outcome.figures, &json_file)?;
    println!("  The figures are in {}", json_file.display());
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn json_file() -> PathBuf {
    workspace_root().join("target/local/demo.json")
}

fn write(figures: &Figures, file: &std::path::Path) -> anyhow::Result<()> {
    let json = serde_json::to_string_pretty(figures)? + "\n";
    std::fs::write(file, json).with_context(|| format!("writing {}", file.display()))
}

/// Starts the stack, holds the sale and stops the stack; nothing comes of it where someone asked us to stop.
async fn hold(args: &Args, run_dir: &RunDir) -> anyhow::Result<Option<Outcome>> {
    let begun = Instant::now();
    let options = Options { queues: args.queues, ..Options::new(args.profile) };
    let stack = tokio::select! {
        stack = Stack::start_as(run_dir.path(), &options) => stack?,
        () = stop_signal() => return Ok(None),
    };
    eprintln!("Everything is up after {:.1} s", begun.elapsed().as_secs_f64());
    let outcome = tokio::select! {
        outcome = sell_and_check(args, &stack) => outcome.map(Some),
        () = stop_signal() => Ok(None),
    };
    eprintln!("Stopping everything");
    let stopped = stack.stop().await;
    let outcome = outcome?;
    stopped.context("stopping the stack")?;
    Ok(outcome)
}

/// The sale, from the activity to the checks.
async fn sell_and_check(args: &Args, stack: &Stack) -> anyhow::Result<Outcome> {
    let settings = Settings::from_variables(&stack.env())?;
    let (base_url, places) = (stack.base_url(), u64::from(args.places));
    let [activity, alone_activity] = activities(stack);
    create(base_url, activity, places).await?;
    first_answer(base_url, activity).await?;

    let plan = plan(args, base_url, activity);
    let sale = sale::hold(&plan).await?;
    let drained = drain(&settings, Some(activity), Duration::from_secs(args.drain_secs)).await?;
    let handed_out: HandedOut = sale.receipts.values().flatten().cloned().collect();
    let findings = verify(&settings, Some(activity), &handed_out).await?;
    let figures = Figures::gather(places, &sale, &drained, &findings);

    create(base_url, alone_activity, ALONE_PLACES).await?;
    let alone = Plan {
        activity: alone_activity,
        people: ALONE_PLACES,
        concurrency: 1,
        double_click_share: 0.0,
        cut_share: 0.0,
        quiet: true,
        ..plan
    };
    let alone = sale::hold(&alone).await?;
    // So that nothing is torn down in the middle of its work.
    drain(&settings, Some(alone_activity), Duration::from_secs(args.drain_secs)).await?;
    Ok(Outcome { figures, sale, drained, findings, alone })
}

/// Two activities that nobody else has: what is on servers that were given is not ours.
fn activities(stack: &Stack) -> [ActivityId; 2] {
    let ids = if stack.servers.is_some() { [42, 43] } else { [rand::random(), rand::random()] };
    if stack.servers.is_none() {
        eprintln!("The sale is of activity {}, then of {}; both stay on the servers that were given", ids[0], ids[1]);
    }
    ids.map(ActivityId::new)
}

fn plan(args: &Args, base_url: &str, activity: ActivityId) -> Plan {
    Plan {
        base_url: base_url.to_owned(),
        activity,
        people: args.people,
        concurrency: args.concurrency,
        double_click_share: 0.1,
        cut_share: 0.05,
        seed: args.seed,
        user_header: USER_HEADER.to_owned(),
        attempts: 6,
        timeout_secs: 30,
        quiet: false,
    }
}

/// Creates the activity over the API, as an organiser would.
async fn create(base_url: &str, id: ActivityId, places: u64) -> anyhow::Result<()> {
    let activity =
        json!({"title": "Spring hike", "capacity": places, "opensAt": null, "closesAt": null, "state": "open"});
    let put = client()?.put(format!("{base_url}/activities/{id}")).header(USER_HEADER, "organiser").json(&activity);
    let response = put.send().await.context("creating the activity")?;
    let status = response.status();
    if status != StatusCode::CREATED {
        bail!("creating activity {id}: {status} {}", response.text().await.unwrap_or_default());
    }
    Ok(())
}

/// Asks once as somebody who does not take part, so that the crowd finds a function that has started.
async fn first_answer(base_url: &str, id: ActivityId) -> anyhow::Result<()> {
    let get = client()?.get(format!("{base_url}/activities/{id}/signups/me")).header(USER_HEADER, "passer-by");
    let response = get.send().await.context("waiting for the signup function")?;
    let status = response.status();
    if status != StatusCode::NOT_FOUND {
        bail!("the signup function answered {status} to a passer-by, not 404: {}", response.text().await?);
    }
    Ok(())
}

fn client() -> anyhow::Result<reqwest::Client> {
    crate::https::client_builder().timeout(FIRST_ANSWER_WITHIN).build().context("making the HTTP client")
}
