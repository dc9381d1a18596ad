//! Waiting for a server to be healthy, and starting again when somebody else was quicker to take its port.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::port;
use super::process::Process;

const PROBE_EVERY: Duration = Duration::from_millis(25);
const PROBE_LIMIT: Duration = Duration::from_secs(2);
const START_ATTEMPTS: usize = 5;

/// Asks `probe` until it succeeds; gives up when the process ends or `limit` has passed.
pub async fn until_ready(
    process: &mut Process,
    limit: Duration,
    mut probe: impl AsyncFnMut() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let deadline = Instant::now() + limit;
    loop {
        process.check_running()?;
        let problem = match tokio::time::timeout(PROBE_LIMIT, probe()).await {
            // A server that lost its port is about to end while the winner answers the probe.
            Ok(Ok(())) => return process.check_running(),
            Ok(Err(error)) => error,
            Err(_) => anyhow::anyhow!("no answer within {PROBE_LIMIT:?}"),
        };
        if Instant::now() > deadline {
            let log = process.log().display();
            return Err(problem.context(format!("not healthy within {limit:?}; see its log: {log}")));
        }
        tokio::time::sleep(PROBE_EVERY).await;
    }
}

/// Runs `start` with free ports, and again with others if one of them was taken in between.
pub async fn on_free_ports<const N: usize, S>(
    mut start: impl AsyncFnMut([u16; N]) -> anyhow::Result<S>,
) -> anyhow::Result<S> {
    for attempt in 1..=START_ATTEMPTS {
        let mut ports = [0; N];
        for port in &mut ports {
            *port = port::free_port()?;
        }
        match start(ports).await {
            Ok(server) => return Ok(server),
            Err(error) if attempt == START_ATTEMPTS || ports.into_iter().all(port::is_free) => return Err(error),
            Err(_) => {}
        }
    }
    bail!("no start was attempted")
}

/// Creates the folder of a server and gives its absolute path.
pub fn create_dir(dir: &Path) -> anyhow::Result<PathBuf> {
    std::fs::create_dir_all(dir)
        .and_then(|()| dir.canonicalize())
        .with_context(|| format!("cannot create {}; check who owns the folder above it", dir.display()))
}

/// A password that nobody needs to remember.
pub fn password() -> String {
    format!("{:016x}", rand::random::<u64>())
}
