//! Invocations in a process of their own, which is killed on its way.

use std::io::BufRead;
use std::os::unix::process::ExitStatusExt;
use std::process::{Output, Stdio};
use std::time::Duration;

use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::time::timeout;

use crate::World;

const SIGKILL: i32 = 9;

/// The longest that one process may take.
const LIMIT: Duration = Duration::from_secs(90);

/// The program that runs one event through one function; see `tests/once.rs`.
pub struct Once(&'static str);

impl Once {
    /// The program at this path.
    pub const fn new(path: &'static str) -> Self {
        Self(path)
    }

    /// Runs one event to its end; the reply.
    pub async fn ran(&self, world: &World, function: &str, event: &Value) -> Value {
        self.printed(world, function, event).await.pop().unwrap()
    }

    /// The same with what it printed before: all lines of its standard output, the reply last.
    pub async fn printed(&self, world: &World, function: &str, event: &Value) -> Vec<Value> {
        let output = self.output(world, &[function], event).await;
        assert!(output.status.success(), "{function}: {}", said(&output));
        output.stdout.lines().map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect()
    }

    /// Runs one event in a process that is killed when it comes to this point. Fails if it does not get there.
    pub async fn killed(&self, world: &World, function: &str, event: &Value, point: &str) {
        self.killed_on_pass(world, function, event, point, 1).await;
    }

    /// The same, when it comes to the point for the `pass`th time.
    pub async fn killed_on_pass(&self, world: &World, function: &str, event: &Value, point: &str, pass: u32) {
        self.died(world, function, event, point, pass).await.unwrap_or_else(|error| panic!("{error}"));
    }

    /// The same; what went otherwise where it did not get there, or replied before.
    pub async fn died(
        &self,
        world: &World,
        function: &str,
        event: &Value,
        point: &str,
        pass: u32,
    ) -> Result<(), String> {
        let output = self.output(world, &[function, "--kill-at", point, &pass.to_string()], event).await;
        if output.status.signal() != Some(SIGKILL) {
            return Err(format!("{function} never came to {point}: {}", said(&output)));
        }
        if !output.stdout.is_empty() {
            return Err(format!("{function} replied before it came to {point}: {}", said(&output)));
        }
        Ok(())
    }

    async fn output(&self, world: &World, arguments: &[&str], event: &Value) -> Output {
        let mut process = Command::new(self.0)
            .args(arguments)
            .env_clear()
            .envs(world.variables())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        // A process that ends early does not read; what it says then tells why.
        let _ = process.stdin.take().unwrap().write_all(event.to_string().as_bytes()).await;
        timeout(LIMIT, process.wait_with_output()).await.expect("the process ends in time").unwrap()
    }
}

fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}\n{}{}", output.status, text(&output.stdout), text(&output.stderr))
}
