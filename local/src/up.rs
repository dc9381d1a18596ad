//! The whole stack: servers, functions, trigger and schedule; and `local up`, which leaves it running.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::json;
use shared::config::{Env, MAX_QUEUES, Topology};

use crate::exec::stop_signal;
use crate::functions::{Functions, Profile, Programs};
use crate::schedule::{self, Schedule};
use crate::servers::{Addresses, Choice, Fsync, RunDir, Servers, find_program, workspace_root};
use crate::trigger::{self, Trigger};

const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How long a stop waits for the batch at hand.
const BATCH_LIMIT: Duration = Duration::from_secs(5);

/// How often `reconcile` runs when deployed.
const RECONCILE_EVERY: Duration = Duration::from_secs(60);

/// How a stack is built and where it differs from the deployed one.
#[derive(Debug, Clone)]
pub struct Options {
    /// How to build the functions.
    pub profile: Profile,
    /// Settings of the functions, on top of the addresses of the servers.
    pub settings: Vec<(String, String)>,
    /// How often `reconcile` runs.
    pub reconcile_every: Duration,
    /// Where to keep what each of its runs reported.
    pub reports: Option<PathBuf>,
    /// The care of Redis for its file.
    pub fsync: Fsync,
    /// How many queues share the sign-ups.
    pub queues: u16,
}

impl Options {
    /// As deployed, but for the profile.
    #[must_use]
    pub fn new(profile: Profile) -> Self {
        let (settings, reports) = (Vec::new(), None);
        Self { profile, settings, reconcile_every: RECONCILE_EVERY, reports, fsync: Fsync::default(), queues: 1 }
    }
}

/// Everything that a deployed Onrush has, on this machine. Dropping it kills everything.
#[derive(Debug)]
pub struct Stack {
    /// Runs `reconcile` from time to time.
    pub schedule: Schedule,
    /// Hand messages to `consumer`, each those of one queue.
    pub triggers: Vec<Trigger>,
    /// The functions behind the API.
    pub functions: Functions,
    /// Where Redis, RabbitMQ and MySQL are.
    pub addresses: Addresses,
    /// These three, unless they were given.
    pub servers: Option<Servers>,
    /// How many queues share the sign-ups.
    pub queues: u16,
}

impl Stack {
    /// Builds the functions as deployed and starts everything, with data and logs in `dir`.
    pub async fn start(dir: &Path) -> anyhow::Result<Self> {
        Self::start_with(dir, Profile::Release).await
    }

    /// [`Stack::start`] with functions built in this profile.
    pub async fn start_with(dir: &Path, profile: Profile) -> anyhow::Result<Self> {
        Self::start_as(dir, &Options::new(profile)).await
    }

    /// [`Stack::start`] with these options.
    pub async fn start_as(dir: &Path, options: &Options) -> anyhow::Result<Self> {
        let servers = async {
            if Choice::from_env()? == Choice::Given {
                return Ok((Addresses::given()?, None));
            }
            let servers = Servers::start_with(dir, options.fsync).await?;
            Ok((Addresses::of(&servers), Some(servers)))
        };
        let ((addresses, servers), programs) = tokio::try_join!(servers, Programs::build(options.profile))?;
        let topology = Topology { queues: options.queues, ..Topology::from_env(&Env::process())? };
        let settings = [addresses.env(), vec![queues_setting(options.queues)], options.settings.clone()].concat();
        let functions = Functions::start(&dir.join("functions"), &programs, &settings).await?;
        functions.invoke("provision", &json!({})).await?;
        let start_trigger = |queue| {
            let settings = trigger::Settings { queue, ..trigger::Settings::new(&addresses.amqp_url) };
            let invoker = functions.invoker();
            Trigger::start(settings, move |event| {
                let invoker = invoker.clone();
                async move { invoker.invoke("consumer", &event).await.map(|_| ()) }
            })
        };
        let triggers = topology.queue_names().into_iter().map(start_trigger).collect();
        let invoker = functions.invoker();
        let settings = schedule::Settings { every: options.reconcile_every, reports: options.reports.clone() };
        let schedule = Schedule::start(settings, move |event| {
            let invoker = invoker.clone();
            async move { invoker.invoke("reconcile", &event).await }
        });
        Ok(Self { schedule, triggers, functions, addresses, servers, queues: options.queues })
    }

    /// Where the API is: `http://127.0.0.1:port`.
    #[must_use]
    pub fn base_url(&self) -> &str {
        self.functions.base_url()
    }

    /// The settings by which others find what this stack is made of.
    #[must_use]
    pub fn env(&self) -> Vec<(String, String)> {
        [self.addresses.env(), vec![queues_setting(self.queues)]].concat()
    }

    /// Stops everything: first the triggers, so that they can finish their batches. One that takes long goes back to its
    /// queue.
    pub async fn stop(self) -> anyhow::Result<()> {
        drop(self.schedule);
        let stopped = futures::future::join_all(self.triggers.into_iter().map(Trigger::stop));
        let _ = tokio::time::timeout(BATCH_LIMIT, stopped).await;
        self.functions.stop().await?;
        match self.servers {
            Some(servers) => servers.stop().await,
            None => Ok(()),
        }
    }
}

fn queues_setting(queues: u16) -> (String, String) {
    ("SIGNUP_QUEUES".to_owned(), queues.to_string())
}

/// Options of `local up`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// How to build the functions
    #[arg(long, value_enum, default_value_t = Profile::Release)]
    profile: Profile,
    /// How many queues share the sign-ups
    #[arg(long, env = "SIGNUP_QUEUES", default_value_t = 1, value_name = "N", value_parser = queues())]
    queues: u16,
}

/// Reads a number of queues.
pub(crate) fn queues() -> clap::builder::RangedI64ValueParser<u16> {
    clap::value_parser!(u16).range(1..=i64::from(MAX_QUEUES))
}

/// Starts the stack, says how to use it, and leaves it running until somebody asks us to stop.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let run_dir = RunDir::create("up")?;
    eprintln!("Starting {}; logs in {}", Choice::from_env()?.starts(), run_dir.path().display());
    let begun = Instant::now();
    let options = Options { queues: args.queues, ..Options::new(args.profile) };
    let started = tokio::select! {
        stack = Stack::start_as(run_dir.path(), &options) => Some(stack),
        () = stop_signal() => None,
    };
    let mut stack = match started {
        Some(Ok(stack)) => stack,
        Some(Err(error)) => {
            run_dir.finish(false)?;
            return Err(error);
        }
        None => {
            run_dir.finish(true)?;
            return Ok(ExitCode::from(130));
        }
    };
    println!("Onrush is up after {:.1} s.\n\n{}", begun.elapsed().as_secs_f32(), guide(&stack, run_dir.path())?);
    let settings = SettingsFile::write(&stack)?;
    let watched = tokio::select! {
        watched = watch(&mut stack) => watched,
        () = stop_signal() => Ok(()),
    };
    drop(settings);
    eprintln!("\nStopping everything");
    let stopped = stack.stop().await;
    run_dir.finish(watched.is_ok() && stopped.is_ok())?;
    watched.and(stopped).map(|()| ExitCode::SUCCESS)
}

/// The addresses of the running stack, for `make verify`; removed when the stack stops.
struct SettingsFile(PathBuf);

impl SettingsFile {
    fn write(stack: &Stack) -> anyhow::Result<Self> {
        let path = workspace_root().join("target/local/up.env");
        let quoted = |value: String| value.replace('\'', r"'\''");
        let lines = stack.env().into_iter().map(|(key, value)| format!("{key}='{}'\n", quoted(value)));
        let _ = std::fs::remove_file(&path); // one that was left behind may be readable by others
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        file.and_then(|mut file| file.write_all(lines.collect::<String>().as_bytes()))
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for SettingsFile {
    fn drop(&mut self) {
        // Gone already, or left behind: then the next verify says that nobody answers.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Tells of batches and runs that fail, and replaces functions that end.
async fn watch(stack: &mut Stack) -> anyhow::Result<()> {
    let mut batches: Vec<_> = stack.triggers.iter().map(Trigger::progress).collect();
    let mut runs = stack.schedule.progress();
    let mut look = tokio::time::interval(LOOK_EVERY);
    loop {
        tokio::select! {
            changed = runs.changed() => {
                changed.context("the schedule has ended")?;
                if let Some(problem) = &runs.borrow_and_update().problem {
                    eprintln!("schedule: {problem}");
                }
            }
            _ = look.tick() => {
                for progress in &mut batches {
                    if progress.has_changed().context("a trigger has ended")?
                        && let Some(problem) = &progress.borrow_and_update().problem
                    {
                        eprintln!("trigger: {problem}");
                    }
                }
                for function in stack.functions.replace_ended()? {
                    eprintln!("{function} had ended and is started again");
                }
            }
        }
    }
}

/// What a person can paste to use the stack and to look inside.
fn guide(stack: &Stack, logs: &Path) -> anyhow::Result<String> {
    let api = format!("{}/activities/42", stack.base_url());
    let (_, port) = stack.base_url().rsplit_once(':').context("the API has no port")?;
    let servers = stack.servers.as_ref().map_or_else(|| Ok(String::new()), look_inside)?;
    let logs = logs.display();
    let activity = r#"{"title":"Spring hike","capacity":100,"opensAt":null,"closesAt":null,"state":"open"}"#;
    Ok(format!(
        "Create an activity as an organiser, sign up, look, cancel:
  curl -i -X PUT {api} -H 'x-user-id: olga' -H 'content-type: application/json' \\
    -d '{activity}'
  curl -i -X POST {api}/signups -H 'x-user-id: alice'
  curl -i {api}/signups/me -H 'x-user-id: alice'
  curl -i -X DELETE {api}/signups/me -H 'x-user-id: alice'
  curl -i {api}

Invoke a function by hand:
  cargo lambda invoke --invoke-address 127.0.0.1 --invoke-port {port} provision --data-ascii '{{}}'

Look inside:
{servers}  Logs      {logs}

Check every promise:
  make verify

Ctrl-C stops everything."
    ))
}

/// How to get into servers that we started; whoever gave theirs knows.
fn look_inside(servers: &Servers) -> anyhow::Result<String> {
    let rabbitmq = reqwest::Url::parse(servers.rabbitmq.management_url())?;
    let mysql = reqwest::Url::parse(servers.mysql.url())?;
    Ok(format!(
        "  RabbitMQ  http://{}:{}/  user {}  password {}
  MySQL     {} -h {} -P {} -u {} -p{} onrush
  Redis     {} -u {}
",
        rabbitmq.host_str().unwrap_or_default(),
        rabbitmq.port().unwrap_or_default(),
        rabbitmq.username(),
        rabbitmq.password().unwrap_or_default(),
        installed(&["mariadb", "mysql"]),
        mysql.host_str().unwrap_or_default(),
        mysql.port().unwrap_or_default(),
        mysql.username(),
        mysql.password().unwrap_or_default(),
        installed(&["redis-cli", "valkey-cli"]),
        servers.redis.url(),
    ))
}

/// The first of these programs that is there.
fn installed(names: &[&'static str]) -> &'static str {
    let found = names.iter().find(|name| find_program(name).is_some());
    found.or(names.first()).copied().unwrap_or_default()
}
