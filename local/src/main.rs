//! `local`: the whole Onrush system on one machine.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The whole Onrush system on one machine.
#[derive(Debug, Parser)]
#[command(
    name = "local",
    after_help = "\
ONRUSH_SERVERS says which Redis, RabbitMQ and MySQL exec, up, demo and chaos use:
  installed  private ones of the programs that are installed (the default)
  modern     private ones of the newest programs, from the tree that local/setup.sh makes (see make test-modern)
  given      those at REDIS_URL, AMQP_URL and MYSQL_URL; none is started, stopped or killed, so not for chaos"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a command with a private Redis, RabbitMQ and MySQL around it
    Exec(local::exec::Args),
    /// Start everything and leave it running until Ctrl-C
    Up(local::up::Args),
    /// Start everything, hold a sale, check every promise, stop everything
    Demo(local::demo::Args),
    /// Kill, freeze and stop every part during a sale, heal, and hold the result against every reply
    Chaos(local::chaos::Args),
    /// Measure from the start of each function to its first reply, over TLS, and its memory
    ColdStart(local::cold_start::Args),
    /// Send a crowd to an activity
    Sale(local::sale::Args),
    /// Check the promises in Redis, RabbitMQ and MySQL
    Verify(local::verify::Args),
}

#[tokio::main]
async fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Exec(args) => local::exec::run(args).await,
        Command::Up(args) => local::up::run(args).await,
        Command::Demo(args) => local::demo::run(args).await,
        Command::Chaos(args) => local::chaos::run(args).await,
        Command::ColdStart(args) => local::cold_start::run(args).await,
        Command::Sale(args) => local::sale::run(args).await,
        Command::Verify(args) => local::verify::run(args).await,
    };
    done.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}
