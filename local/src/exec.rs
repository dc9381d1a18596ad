//! `local exec`: a command with private servers around it.

use std::ffi::{OsStr, OsString};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::Child;
use tokio::signal::unix::{SignalKind, signal};

use crate::servers::{Addresses, Choice, RedisCluster, RunDir, Servers};

/// What to run.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What REDIS_URL leads to. With `cluster`, REDIS_CLUSTER is true, and SINGLE_REDIS_URL leads to the single server
    #[arg(long, value_enum, default_value_t)]
    redis: Kind,
    /// The command and its arguments; it finds the servers in `REDIS_URL`, `AMQP_URL`, `MYSQL_URL` and
    /// `RABBITMQ_MANAGEMENT_URL`.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// What holds the places.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Kind {
    /// One server.
    #[default]
    Single,
    /// Three primaries and three replicas.
    Cluster,
}

/// A node that is silent for longer is taken for dead. Here all nodes live, and the machine is busy.
const NODE_TIMEOUT: Duration = Duration::from_secs(30);

/// Starts the servers, runs the command, stops the servers, and passes the command's exit status on.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let (program, arguments) = args.command.split_first().context("no command given")?;
    if Choice::from_env()? == Choice::Given {
        ensure!(args.redis == Kind::Single, "a cluster that is given needs no --redis: set REDIS_CLUSTER");
        return Ok(ExitCode::from(run_with(program, arguments, Addresses::given()?.env()).await?));
    }
    let run_dir = RunDir::create("exec")?;
    let started = Instant::now();
    let starting = async {
        let cluster = async {
            match args.redis {
                Kind::Single => Ok(None),
                Kind::Cluster => RedisCluster::start(&run_dir.path().join("cluster"), NODE_TIMEOUT).await.map(Some),
            }
        };
        tokio::try_join!(Servers::start(run_dir.path()), cluster)
    };
    let servers = tokio::select! {
        servers = starting => Some(servers),
        () = stop_signal() => None,
    };
    let (servers, cluster) = match servers {
        Some(Ok(servers)) => servers,
        Some(Err(error)) => {
            run_dir.finish(false)?;
            return Err(error);
        }
        None => {
            run_dir.finish(true)?;
            return Ok(ExitCode::from(130));
        }
    };
    eprintln!(
        "Redis, RabbitMQ and MySQL ready in {:.1} s, logs in {}",
        started.elapsed().as_secs_f32(),
        run_dir.path().display()
    );

    let mut env = Addresses::of(&servers).env();
    if let Some(cluster) = &cluster {
        env.push(("SINGLE_REDIS_URL".to_owned(), servers.redis.url().to_owned()));
        env.extend(cluster.env());
    }
    let code = run_with(program, arguments, env).await;
    let stopped = servers.stop().await;
    let stopped = match cluster {
        Some(cluster) => stopped.and(cluster.stop().await),
        None => stopped,
    };
    let success = stopped.is_ok() && matches!(code, Ok(0));
    if let Some(logs) = run_dir.finish(success)? {
        eprintln!("The servers' logs stay in {}", logs.display());
    }
    stopped?;
    Ok(ExitCode::from(code?))
}

/// Runs the command with these variables; its exit status.
async fn run_with(program: &OsStr, arguments: &[OsString], env: Vec<(String, String)>) -> anyhow::Result<u8> {
    let child = tokio::process::Command::new(program).args(arguments).envs(env).kill_on_drop(true).spawn();
    wait_passing_signals_on(&mut child.with_context(|| format!("cannot start {}", program.display()))?).await
}

/// Ctrl-C reaches the command from the terminal by itself, so we only outlast it; other requests we pass on.
async fn wait_passing_signals_on(child: &mut Child) -> anyhow::Result<u8> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let pid = child.id().context("the command has no process id")?;
    loop {
        tokio::select! {
            status = child.wait() => return Ok(exit_code(status?)),
            _ = interrupt.recv() => {}
            _ = terminate.recv() => kill(Pid::from_raw(i32::try_from(pid)?), Signal::SIGTERM)?,
            _ = hangup.recv() => kill(Pid::from_raw(i32::try_from(pid)?), Signal::SIGHUP)?,
        }
    }
}

/// A command ended by a signal counts as 128 + signal, as in a shell.
fn exit_code(status: std::process::ExitStatus) -> u8 {
    use std::os::unix::process::ExitStatusExt;
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// Waits until somebody asks us to stop: Ctrl-C, SIGTERM, or a closed terminal.
pub async fn stop_signal() {
    let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
    let [Ok(mut interrupt), Ok(mut terminate), Ok(mut hangup)] = kinds.map(signal) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    #[test]
    fn the_exit_status_of_the_command_is_passed_on() {
        assert_eq!(exit_code(ExitStatus::from_raw(0)), 0);
        assert_eq!(exit_code(ExitStatus::from_raw(7 << 8)), 7);
        assert_eq!(exit_code(ExitStatus::from_raw(9)), 137);
    }
}
