//! A private Redis (or Valkey) with an append-only file.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::ensure;
use shared::config::Secret;

use super::process::{Launch, Process};
use super::tls::{self, Certificates};
use super::{programs, ready};

const START_LIMIT: Duration = Duration::from_secs(30);
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// When Redis makes sure that a write is in its file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Fsync {
    /// Each second, as servers have it by default. While the disk is busy Redis answers first and writes later, so a
    /// kill may lose the last moment.
    #[default]
    EachSecond,
    /// Before it answers: a kill loses nothing that was answered.
    EachWrite,
}

/// A running Redis; see [`super`] for what holds for all servers.
#[derive(Debug)]
pub struct Redis {
    process: Process,
    url: String,
    tls: Option<Certificates>,
}

impl Redis {
    /// The program, Redis or Valkey.
    pub fn program() -> anyhow::Result<PathBuf> {
        programs::find("Redis or Valkey", &["redis-server", "valkey-server"])
    }

    /// Starts one with its data and log in `dir`.
    pub async fn start(dir: &Path) -> anyhow::Result<Self> {
        Self::start_with(dir, Fsync::default()).await
    }

    /// [`Redis::start`] with another care for its file.
    pub async fn start_with(dir: &Path, fsync: Fsync) -> anyhow::Result<Self> {
        Self::start_as(dir, fsync, None).await
    }

    /// Starts one that takes connections over TLS only.
    pub async fn start_over_tls(dir: &Path, tls: &Certificates) -> anyhow::Result<Self> {
        Self::start_as(dir, Fsync::default(), Some(tls)).await
    }

    async fn start_as(dir: &Path, fsync: Fsync, tls: Option<&Certificates>) -> anyhow::Result<Self> {
        let dir = ready::create_dir(dir)?;
        let program = Self::program()?;
        ready::on_free_ports(async |[port]: [u16; 1]| Self::start_on(&dir, &program, port, fsync, tls).await).await
    }

    async fn start_on(
        dir: &Path,
        program: &Path,
        port: u16,
        fsync: Fsync,
        tls: Option<&Certificates>,
    ) -> anyhow::Result<Self> {
        let fsync = match fsync {
            Fsync::EachSecond => "everysec",
            Fsync::EachWrite => "always",
        };
        let process = Launch::new("Redis", program, dir, &dir.join("redis.log"))
            .args(["--bind", "127.0.0.1", "--daemonize", "no", "--save", ""])
            .args(listener(port, tls))
            .args(["--appendonly", "yes", "--appendfsync", fsync])
            .arg("--dir")
            .arg(dir)
            .start()?;
        let scheme = if tls.is_some() { "rediss" } else { "redis" };
        let mut redis = Self { process, url: format!("{scheme}://127.0.0.1:{port}/"), tls: tls.cloned() };
        redis.until_healthy().await?;
        Ok(redis)
    }

    async fn until_healthy(&mut self) -> anyhow::Result<()> {
        let (url, tls, pid) = (&self.url, self.tls.as_ref(), self.pid());
        if tls.is_some_and(|tls| !tls.are_good()) {
            return ready::until_ready(&mut self.process, START_LIMIT, async || tls::listens(url).await).await;
        }
        let client = tls::endpoint(url, tls)?.redis_client(&Secret::new(url.as_str()))?;
        ready::until_ready(&mut self.process, START_LIMIT, async || probe(&client, pid).await).await
    }

    /// `redis://127.0.0.1:port/`, or `rediss://`
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The server's process id; 0 while it is down.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Where it logs.
    #[must_use]
    pub fn log(&self) -> &Path {
        self.process.log()
    }

    /// Freezes the server.
    pub fn pause(&self) -> anyhow::Result<()> {
        self.process.pause()
    }

    /// Thaws the server.
    pub fn resume(&self) -> anyhow::Result<()> {
        self.process.resume()
    }

    /// Kills the server and waits until it is gone.
    pub async fn kill(&mut self) -> anyhow::Result<()> {
        self.process.kill().await
    }

    /// Stops the server in order.
    pub async fn stop(&mut self) -> anyhow::Result<()> {
        self.process.stop(STOP_LIMIT).await
    }

    /// Starts it again on the same port with the same data.
    pub async fn restart(&mut self) -> anyhow::Result<()> {
        self.process.start_again()?;
        self.until_healthy().await
    }
}

/// Where it listens, in plain text or over TLS.
fn listener(port: u16, tls: Option<&Certificates>) -> Vec<OsString> {
    match tls {
        Some(tls) => ["--port", "0"].map(Into::into).into_iter().chain(tls_listener(port, tls)).collect(),
        None => vec!["--port".into(), port.to_string().into()],
    }
}

/// Where it listens over TLS, besides.
pub(super) fn tls_listener(port: u16, tls: &Certificates) -> Vec<OsString> {
    let port = port.to_string();
    let mut args: Vec<OsString> = ["--tls-port", &port, "--tls-auth-clients", "no"].map(Into::into).into();
    let files = [
        ("--tls-ca-cert-file", tls.authority()),
        ("--tls-cert-file", tls.certificate()),
        ("--tls-key-file", tls.key()),
    ];
    args.extend(files.into_iter().flat_map(|(name, path)| [name.into(), path.into()]));
    args
}

/// Healthy: it answers, has loaded its data, and is ours rather than one that took the port before us.
pub(super) async fn probe(client: &::redis::Client, pid: u32) -> anyhow::Result<()> {
    let mut connection = client.get_multiplexed_async_connection().await?;
    let _: String = ::redis::cmd("PING").query_async(&mut connection).await?;
    let info: String = ::redis::cmd("INFO").arg("server").query_async(&mut connection).await?;
    let ours = info.lines().any(|line| line.strip_prefix("process_id:") == Some(pid.to_string().as_str()));
    ensure!(ours, "another server answers on this port");
    Ok(())
}
