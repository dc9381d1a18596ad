//! The Lambda functions on this machine: `cargo lambda watch` plays API Gateway and the Lambda service, and each
//! function is a process of ours that asks it for work, as an execution environment does.
//!
//! We start the functions ourselves (`--only-lambda-apis`) rather than let `cargo lambda watch` start them: it gives
//! each environment one request at a time and adds environments, each by way of `cargo run`, one per 100 ms. Measured on
//! two busy cores with 64 connections, one environment with one request at a time serves some 200 sign-ups a second,
//! with many at once, as on Lambda Managed Instances, 800 to 1,700. Besides, a function that cannot start says so
//! instead of never answering, and a test can kill one.

mod build;
mod invoke;

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use serde_json::json;
use shared::config::MAX_QUEUES;
use tokio::sync::watch;

use crate::servers::{Launch, Process, find_program, free_port, until_ready, workspace_root};

pub use build::{Profile, Programs};
pub use invoke::Invoker;

const START_LIMIT: Duration = Duration::from_secs(30);

/// A function and how many requests one environment of it serves at once.
struct Function {
    name: &'static str,
    concurrency: u16,
}

/// More than 100 requests waiting for one function stop `cargo lambda watch` for ever, so the functions behind the
/// API take many at once. An event source mapping for RabbitMQ has one batch in flight, and each queue has a mapping.
const FUNCTIONS: [Function; 5] = [
    Function { name: "signup", concurrency: 64 },
    Function { name: "activities", concurrency: 16 },
    Function { name: "consumer", concurrency: MAX_QUEUES },
    Function { name: "provision", concurrency: 1 },
    Function { name: "reconcile", concurrency: 1 },
];

/// The running functions; dropping it kills them.
#[derive(Debug)]
pub struct Functions {
    emulator: Process,
    environments: Vec<Process>,
    invoker: Invoker,
    ended: watch::Sender<invoke::Ended>,
}

impl Functions {
    /// Starts the functions with these settings and waits until they answer. Logs go to `dir`.
    ///
    /// `provision` is started too, but not invoked.
    pub async fn start(dir: &Path, programs: &Programs, settings: &[(String, String)]) -> anyhow::Result<Self> {
        std::fs::create_dir_all(dir)?;
        let dir = dir.canonicalize()?;
        let port = free_port()?;
        let (ended, seen) = watch::channel(invoke::Ended::new());
        let mut functions = Self {
            emulator: start_emulator(&dir, port)?,
            environments: Vec::new(),
            invoker: Invoker::new(format!("http://127.0.0.1:{port}"), seen)?,
            ended,
        };
        functions.until_emulator_answers().await?;
        for function in &FUNCTIONS {
            let program = programs.path(function.name)?;
            let log = dir.join(format!("{}.log", function.name));
            let mut launch = Launch::new(function.name, program, &dir, &log)
                .env("AWS_LAMBDA_RUNTIME_API", format!("http://127.0.0.1:{port}/.rt/{}", function.name))
                .env("AWS_LAMBDA_FUNCTION_NAME", function.name)
                .env("AWS_LAMBDA_FUNCTION_VERSION", "1")
                .env("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "1024")
                .env("AWS_LAMBDA_MAX_CONCURRENCY", function.concurrency.to_string())
                .env("DEV_USER_HEADER", "x-user-id");
            for (key, value) in settings {
                launch = launch.env(key, value);
            }
            functions.environments.push(launch.start()?);
        }
        functions.until_functions_answer().await?;
        Ok(functions)
    }

    /// Where the API is: `http://127.0.0.1:port`.
    #[must_use]
    pub fn base_url(&self) -> &str {
        self.invoker.base_url()
    }

    /// Invokes functions of this set, also from other tasks.
    #[must_use]
    pub fn invoker(&self) -> Invoker {
        self.invoker.clone()
    }

    /// Invokes a function and waits for its answer; an error of the function is an error here.
    pub async fn invoke(&self, function: &str, event: &serde_json::Value) -> anyhow::Result<serde_json::Value> {
        self.invoker.invoke(function, event).await
    }

    /// The execution environment of a function, to kill, pause or start again.
    pub fn environment(&mut self, function: &str) -> anyhow::Result<&mut Process> {
        let index = FUNCTIONS.iter().position(|known| known.name == function);
        index.and_then(|index| self.environments.get_mut(index)).with_context(|| format!("no function {function}"))
    }

    /// Starts again what has ended, as Lambda replaces an execution environment, and names it. Invocations that it left
    /// unanswered fail.
    pub fn replace_ended(&mut self) -> anyhow::Result<Vec<&'static str>> {
        let mut replaced = Vec::new();
        for (function, process) in FUNCTIONS.iter().zip(&mut self.environments) {
            if !process.is_running() {
                process.start_again()?;
                replaced.push(function.name);
            }
        }
        if !replaced.is_empty() {
            self.ended.send_modify(|ended| replaced.iter().for_each(|name| *ended.entry(name).or_default() += 1));
        }
        Ok(replaced)
    }

    /// Stops all of it.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        for process in self.environments.iter_mut().chain([&mut self.emulator]) {
            process.kill().await?;
        }
        Ok(())
    }

    async fn until_emulator_answers(&mut self) -> anyhow::Result<()> {
        let address = self.invoker.base_url().trim_start_matches("http://").to_owned();
        until_ready(&mut self.emulator, START_LIMIT, async || {
            tokio::net::TcpStream::connect(&address).await?;
            Ok(())
        })
        .await
    }

    /// A request waits in the emulator until its function has started, so one answer each is proof.
    async fn until_functions_answer(&mut self) -> anyhow::Result<()> {
        let Self { invoker, environments, .. } = self;
        let Some([signup, activities, consumer]) = environments.first_chunk_mut() else {
            return Ok(());
        };
        tokio::try_join!(
            until_ready(signup, START_LIMIT, async || invoker.answers("/activities/0/signups/me").await),
            until_ready(activities, START_LIMIT, async || invoker.answers("/").await),
            until_ready(consumer, START_LIMIT, async || {
                let nothing = json!({"eventSource": "aws:rmq", "rmqMessagesByQueue": {}});
                invoker.invoke("consumer", &nothing).await.map(|_| ())
            }),
        )?;
        Ok(())
    }
}

fn start_emulator(dir: &Path, port: u16) -> anyhow::Result<Process> {
    let installed = workspace_root().join("target/tools/venv/bin/cargo-lambda");
    let program = find_program("cargo-lambda")
        .or_else(|| installed.is_file().then_some(installed))
        .context("cargo-lambda is not installed; run local/setup.sh")?;
    Launch::new("cargo lambda watch", &program, workspace_root(), &dir.join("cargo-lambda.log"))
        .args(["lambda", "watch", "--only-lambda-apis", "--ignore-changes", "--disable-cors"])
        .args(["--invoke-address", "127.0.0.1", "--invoke-port", &port.to_string()])
        .start()
}
