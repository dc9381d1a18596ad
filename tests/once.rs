//! Runs one event, read from standard input, through one function in this process, with the settings of its environment,
//! and prints the reply as JSON.
//!
//! `once signup|consumer|reconcile|activities [--kill-at POINT [PASS]]`: with a point the process kills itself, as
//! `kill -9` does, when it comes to that `shared::fail_point!` for the PASSth time, the first by default.

use std::io::Read;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use lapin::options::QueueDeclareOptions;
use lapin::types::FieldTable;
use lapin::{Connection, ConnectionProperties};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use shared::config::{BrokerConfig, Env};
use shared::fail;
use tests::{ask, invocation, send};

/// How long an invocation may take.
const LIMIT: Duration = Duration::from_secs(60);

/// How long a message may take to the queue.
const DELIVERY_LIMIT: Duration = Duration::from_secs(10);

/// Here the message has been handed to the client, and may not have left the process.
const BEFORE_CONFIRM: &str = "publish.before-confirm";

/// With several threads: one may stand at a point while the others move bytes.
#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let function = match arguments.as_slice() {
        [function] => *function,
        [function, "--kill-at", point] => {
            kill_at(point, 1)?;
            function
        }
        [function, "--kill-at", point, pass] => {
            kill_at(point, pass.parse().context("PASS is a number")?)?;
            function
        }
        _ => bail!("usage: once FUNCTION [--kill-at POINT [PASS]]"),
    };
    let mut event = String::new();
    std::io::stdin().read_to_string(&mut event)?;
    println!("{}", reply(function, serde_json::from_str(&event)?).await?);
    Ok(())
}

async fn reply(function: &str, event: Value) -> anyhow::Result<Value> {
    let env = Env::process();
    let failed = |error: lambda_runtime::Error| anyhow::anyhow!("{error}");
    let reply = match function {
        "signup" => send(&signup::App::from_env(&env).map_err(failed)?, &event).await,
        "activities" => ask(&activities::App::from_env(&env).map_err(failed)?, &event).await,
        "consumer" => {
            let app = consumer::App::from_env(&env).map_err(failed)?;
            return Ok(serde_json::to_value(consumer::handle(&app, invocation(event, LIMIT)).await?)?);
        }
        "reconcile" => {
            let app = reconcile::App::from_env(&env).map_err(failed)?;
            return Ok(serde_json::to_value(reconcile::handle(&app, invocation(event, LIMIT)).await?)?);
        }
        _ => bail!("no function {function:?}"),
    };
    Ok(json!({"status": reply.status, "body": reply.body}))
}

/// Has this process killed when it comes to the point for the `pass`th time.
fn kill_at(point: &str, pass: u32) -> anyhow::Result<()> {
    ensure!(pass > 0, "PASS counts from 1");
    let passed = AtomicU32::new(0);
    let is_before_confirm = point == BEFORE_CONFIRM;
    let at_the_point = move || {
        if passed.fetch_add(1, Ordering::SeqCst) + 1 != pass {
            return;
        }
        if is_before_confirm {
            wait_for_delivery();
        }
        kill(Pid::this(), Signal::SIGKILL).unwrap();
        unreachable!("killed");
    };
    fail::cfg_callback(point, at_the_point).map_err(anyhow::Error::msg)
}

/// Holds this thread until the queue has a message. Fails the process, in another way than a kill, where none comes.
fn wait_for_delivery() {
    let looking = std::thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { tokio::time::timeout(DELIVERY_LIMIT, has_a_message()).await })
    });
    looking.join().unwrap().expect("the message is in the queue in time");
}

async fn has_a_message() {
    let config = BrokerConfig::from_env(&Env::process()).unwrap();
    let url = std::env::var("AMQP_URL").unwrap();
    let connection = Connection::connect(&url, ConnectionProperties::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    let queue = config.topology.queue.as_str();
    loop {
        let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let declared = channel.queue_declare(queue.into(), passive, FieldTable::default()).await.unwrap();
        if declared.message_count() > 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
