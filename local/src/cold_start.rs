//! `local cold-start`: how long a function takes from the start of its process to its first reply, over TLS, and how much
//! memory it holds.
//!
//! Each start is a fresh process of the release build under a Runtime API of its own. The servers are private ones that take
//! connections over TLS only, with a certificate of an authority of our own.

mod runtime_api;

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use crate::functions::{Profile, Programs};
use crate::report::Table;
use crate::servers::{Certificates, Launch, Process, RunDir, Servers, workspace_root};
use runtime_api::RuntimeApi;

/// The longest that the middle one of all starts may take.
const START_LIMIT: Duration = Duration::from_millis(60);

/// The most memory that `signup` may hold after [`REQUESTS`], in bytes.
const MEMORY_LIMIT: u64 = 25_000_000;

/// What each function is asked first.
const FIRST_EVENTS: [(&str, &str); 4] = [
    ("signup", "signup-post.json"),
    ("activities", "activities-get.json"),
    ("consumer", "consumer.json"),
    ("reconcile", "reconcile-by-hand.json"),
];

/// Options of `local cold-start`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// How often to start each function
    #[arg(long, default_value_t = 15, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    starts: u32,
    /// How many people sign up with one process of `signup` before its memory is looked at
    #[arg(long, default_value_t = 10_000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    requests: u32,
}

/// What one function showed.
struct Measured {
    function: &'static str,
    /// From the start of the process to its first reply, in order.
    starts: Vec<Duration>,
    /// Resident memory after the first reply, in bytes: the most of all.
    memory: u64,
}

impl Measured {
    fn median(&self) -> Duration {
        self.starts.get(self.starts.len() / 2).copied().unwrap_or_default()
    }
}

/// Measures, prints a table, and fails where a limit is passed.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let run_dir = RunDir::create("cold-start")?;
    let measured = measure(&args, run_dir.path()).await;
    run_dir.finish(measured.is_ok())?;
    let (functions, memory) = measured?;
    let mut table = Table::new(format!("Cold starts over TLS, {} of each function", args.starts));
    for function in &functions {
        let slowest = function.starts.last().copied().unwrap_or_default();
        let remark =
            format!("median to the first reply, {} at most; then {} resident", ms(slowest), mb(function.memory));
        table.row(function.function, ms(function.median()), remark);
    }
    table.row("signup", mb(memory), format!("resident after {} sign-ups, of {}", args.requests, mb(MEMORY_LIMIT)));
    println!("{table}");
    let late: Vec<_> = functions.iter().filter(|function| function.median() > START_LIMIT).collect();
    for function in &late {
        eprintln!("error: {} is not below {} from start to first reply", function.function, ms(START_LIMIT));
    }
    if memory > MEMORY_LIMIT {
        eprintln!("error: signup holds more than {}", mb(MEMORY_LIMIT));
    }
    Ok(if late.is_empty() && memory <= MEMORY_LIMIT { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn measure(args: &Args, dir: &Path) -> anyhow::Result<(Vec<Measured>, u64)> {
    eprintln!("Starting Redis, RabbitMQ and MySQL over TLS; logs in {}", dir.display());
    let tls = Certificates::create(&dir.join("tls"))?;
    let (servers, programs) = tokio::try_join!(Servers::start_over_tls(dir, &tls), Programs::build(Profile::Release))?;
    let mut settings = servers.env();
    settings.push(("TLS_CA_FILE".to_owned(), tls.authority().display().to_string()));
    let world = World { dir, programs: &programs, settings };

    world.prepare(args.requests).await?;
    let mut functions = Vec::new();
    for (function, event) in FIRST_EVENTS {
        eprintln!("Starting {function} {} times", args.starts);
        functions.push(world.measure(function, &sample(event)?, args.starts).await?);
    }
    eprintln!("Signing {} people up", args.requests);
    let memory = world.memory_after(args.requests).await?;
    servers.stop().await?;
    Ok((functions, memory))
}

/// Where functions run.
struct World<'a> {
    dir: &'a Path,
    programs: &'a Programs,
    settings: Vec<(String, String)>,
}

impl World<'_> {
    /// Declares the queue, applies the migrations and opens an activity with room for all.
    async fn prepare(&self, people: u32) -> anyhow::Result<()> {
        let (_provision, mut provision) = self.start("provision").await?;
        provision.invoke(&json!({})).await?;
        let (_activities, mut activities) = self.start("activities").await?;
        let mut event = sample("activities-put.json")?;
        event["body"] = json!({"title": "Spring hike", "capacity": people + 1_000}).to_string().into();
        let reply = activities.invoke(&event).await?;
        ensure!(reply["statusCode"] == 201, "the activity was not created: {reply}");
        Ok(())
    }

    async fn measure(&self, function: &'static str, event: &Value, times: u32) -> anyhow::Result<Measured> {
        let (mut starts, mut memory) = (Vec::new(), 0);
        for _ in 0..times {
            let begun = Instant::now();
            let (process, mut api) = self.start(function).await?;
            let reply = api.invoke(event).await?;
            starts.push(begun.elapsed());
            ensure!(reply["statusCode"].as_u64().is_none_or(|status| status < 300), "{function} replied {reply}");
            memory = memory.max(resident(process.pid())?);
        }
        starts.sort();
        Ok(Measured { function, starts, memory })
    }

    async fn memory_after(&self, people: u32) -> anyhow::Result<u64> {
        let (process, mut api) = self.start("signup").await?;
        let mut event = sample("signup-post.json")?;
        for person in 0..people {
            event["requestContext"]["authorizer"]["jwt"]["claims"]["sub"] = format!("person-{person:09}").into();
            let reply = api.invoke(&event).await?;
            ensure!(reply["statusCode"] == 202, "signup replied {reply}");
        }
        resident(process.pid())
    }

    /// A process of the function, and the Runtime API that it asks. Ends when dropped.
    async fn start(&self, function: &'static str) -> anyhow::Result<(Process, RuntimeApi)> {
        let api = RuntimeApi::start().await?;
        let log = self.dir.join(format!("{function}.log"));
        let mut launch = Launch::new(function, self.programs.path(function)?, self.dir, &log)
            .env("AWS_LAMBDA_RUNTIME_API", api.address())
            .env("AWS_LAMBDA_FUNCTION_NAME", function)
            .env("AWS_LAMBDA_FUNCTION_VERSION", "1")
            .env("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "1024");
        for (key, value) in &self.settings {
            launch = launch.env(key, value);
        }
        Ok((launch.start()?, api))
    }
}

/// One of the events that the tests and `cargo lambda invoke` use.
fn sample(name: &str) -> anyhow::Result<Value> {
    let path = workspace_root().join("tests/events").join(name);
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(serde_json::from_str(&text)?)
}

/// Resident memory of a process, in bytes; see proc(5).
fn resident(pid: u32) -> anyhow::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).context("the function has ended")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS in its status")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib * 1_024)
}

fn ms(duration: Duration) -> String {
    format!("{:.1} ms", duration.as_secs_f64() * 1_000.0)
}

fn mb(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}
