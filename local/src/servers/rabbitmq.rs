//! A private RabbitMQ with its management console, and the Erlang port mapper it needs.
//!
//! The port mapper (`epmd`) is a child of its own, on a port of its own: left to itself, Erlang starts one in the
//! background that outlives everything.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use shared::config::Secret;

use super::process::{Launch, Process};
use super::tls::{self, Certificates};
use super::{programs, ready};
use crate::https;

const START_LIMIT: Duration = Duration::from_secs(90);
const STOP_LIMIT: Duration = Duration::from_secs(15);
const USER: &str = "onrush";

/// A running RabbitMQ; see [`super`] for what holds for all servers.
#[derive(Debug)]
pub struct RabbitMq {
    broker: Process,
    port_mapper: Process,
    url: String,
    management_url: String,
    tls: Option<Certificates>,
}

struct Ports {
    amqp: u16,
    management: u16,
    distribution: u16,
    port_mapper: u16,
}

impl RabbitMq {
    /// Starts one with its data and log in `dir`.
    pub async fn start(dir: &Path) -> anyhow::Result<Self> {
        Self::start_with(dir, None).await
    }

    /// Starts one that takes connections over TLS only; its console stays as it is.
    pub async fn start_over_tls(dir: &Path, tls: &Certificates) -> anyhow::Result<Self> {
        Self::start_with(dir, Some(tls)).await
    }

    async fn start_with(dir: &Path, tls: Option<&Certificates>) -> anyhow::Result<Self> {
        let dir = ready::create_dir(dir)?;
        let program = programs::find("RabbitMQ", &["rabbitmq-server"])?;
        let epmd = programs::find("Erlang's epmd", &["epmd"])?;
        ready::on_free_ports(async |[amqp, management, distribution, port_mapper]: [u16; 4]| {
            let ports = Ports { amqp, management, distribution, port_mapper };
            Self::start_on(&dir, &program, &epmd, &ports, tls).await
        })
        .await
    }

    async fn start_on(
        dir: &Path,
        program: &Path,
        epmd: &Path,
        ports: &Ports,
        tls: Option<&Certificates>,
    ) -> anyhow::Result<Self> {
        let password = ready::password();
        write_settings(dir, ports, &password, tls)?;
        let epmd_port = ports.port_mapper.to_string();
        let port_mapper = Launch::new("epmd", epmd, dir, &dir.join("epmd.log"))
            .args(["-port", &epmd_port, "-address", "127.0.0.1"])
            .start()?;
        let broker = Launch::new("RabbitMQ", program, dir, &dir.join("rabbitmq.log"))
            .unset("RABBITMQ_")
            .unset("ERL_")
            .env("HOME", dir)
            .env("ERL_EPMD_PORT", &epmd_port)
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .env("ERL_CRASH_DUMP_SECONDS", "0")
            .env("RABBITMQ_CONF_ENV_FILE", "/dev/null")
            .env("RABBITMQ_CONFIG_FILE", dir.join("rabbitmq.conf"))
            .env("RABBITMQ_ADVANCED_CONFIG_FILE", dir.join("advanced.config"))
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", dir.join("enabled_plugins"))
            .env("RABBITMQ_NODENAME", "onrush@localhost")
            .env("RABBITMQ_MNESIA_BASE", dir.join("data"))
            .env("RABBITMQ_LOG_BASE", dir)
            .env("RABBITMQ_LOGS", "-")
            // The start script then becomes the server instead of staying its parent, so that signals and the
            // process id are the server's.
            .env("RABBITMQ_ALLOW_INPUT", "1")
            .env("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", "-noinput")
            .start()?;
        let mut rabbitmq = Self {
            broker,
            port_mapper,
            url: format!(
                "{}://{USER}:{password}@127.0.0.1:{}/%2f",
                if tls.is_some() { "amqps" } else { "amqp" },
                ports.amqp
            ),
            management_url: format!("http://{USER}:{password}@127.0.0.1:{}", ports.management),
            tls: tls.cloned(),
        };
        rabbitmq.until_healthy().await?;
        Ok(rabbitmq)
    }

    /// `rabbitmqctl`, which needs the variables of the server that it is for.
    pub fn control() -> anyhow::Result<Command> {
        Ok(programs::command(&programs::find("rabbitmqctl", &["rabbitmqctl"])?))
    }

    async fn until_healthy(&mut self) -> anyhow::Result<()> {
        let overview = format!("{}/api/overview", self.management_url);
        let (url, console) = (&self.url, https::client_builder().tls_certs_only([]).build()?);
        let tls = self.tls.as_ref();
        ready::until_ready(&mut self.broker, START_LIMIT, async || probe(url, tls, console.get(&overview)).await).await
    }

    /// `amqp://user:password@127.0.0.1:port/%2f`, or `amqps://`
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// `http://user:password@127.0.0.1:port`, the console and its API.
    #[must_use]
    pub fn management_url(&self) -> &str {
        &self.management_url
    }

    /// The server's process id; 0 while it is down.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.broker.pid()
    }

    /// Where it logs.
    #[must_use]
    pub fn log(&self) -> &Path {
        self.broker.log()
    }

    /// Freezes the server.
    pub fn pause(&self) -> anyhow::Result<()> {
        self.broker.pause()
    }

    /// Thaws the server.
    pub fn resume(&self) -> anyhow::Result<()> {
        self.broker.resume()
    }

    /// Kills the server and waits until it is gone.
    ///
    /// RabbitMQ 3.10 writes down a new quorum queue's term some three seconds late: one declared just before the kill
    /// never finds a leader again, and every publish to it hangs. Declare it, wait four seconds, then kill.
    pub async fn kill(&mut self) -> anyhow::Result<()> {
        self.broker.kill().await
    }

    /// Stops the server in order, then its port mapper.
    pub async fn stop(&mut self) -> anyhow::Result<()> {
        self.broker.stop(STOP_LIMIT).await?;
        self.port_mapper.kill().await
    }

    /// Starts it again on the same ports with the same data.
    pub async fn restart(&mut self) -> anyhow::Result<()> {
        if !self.port_mapper.is_running() {
            self.port_mapper.start_again()?;
        }
        self.broker.start_again()?;
        self.until_healthy().await
    }
}

/// Healthy: it accepts our login and a channel, and its management console answers.
async fn probe(url: &str, tls: Option<&Certificates>, overview: reqwest::RequestBuilder) -> anyhow::Result<()> {
    overview.send().await?.error_for_status()?;
    if tls.is_some_and(|tls| !tls.are_good()) {
        return tls::listens(url).await;
    }
    let connection = tls::endpoint(url, tls)?.amqp_connection(&Secret::new(url), "onrush-probe").await?;
    // A channel that is dropped before closes itself, and the two closings may meet.
    let _channel = connection.create_channel().await?;
    connection.close(200, "healthy".into()).await?;
    Ok(())
}

fn write_settings(dir: &Path, ports: &Ports, password: &str, tls: Option<&Certificates>) -> anyhow::Result<()> {
    let Ports { amqp, management, distribution, .. } = ports;
    let listeners = match tls {
        None => format!("listeners.tcp.1 = 127.0.0.1:{amqp}\n"),
        Some(tls) => format!(
            "listeners.tcp = none\n\
             listeners.ssl.1 = 127.0.0.1:{amqp}\n\
             ssl_options.cacertfile = {}\n\
             ssl_options.certfile = {}\n\
             ssl_options.keyfile = {}\n\
             ssl_options.versions.1 = tlsv1.3\n\
             ssl_options.versions.2 = tlsv1.2\n",
            tls.authority().display(),
            tls.certificate().display(),
            tls.key().display(),
        ),
    };
    let settings = format!(
        "{listeners}\
         management.tcp.ip = 127.0.0.1\n\
         management.tcp.port = {management}\n\
         distribution.listener.interface = 127.0.0.1\n\
         distribution.listener.port_range.min = {distribution}\n\
         distribution.listener.port_range.max = {distribution}\n\
         default_user = {USER}\n\
         default_pass = {password}\n\
         collect_statistics_interval = 1000\n\
         log.console = true\n\
         log.console.level = info\n\
         log.file = false\n"
    );
    // The user is created on the first start only; a second attempt on other ports must not find the old password.
    let data = dir.join("data");
    if data.exists() {
        std::fs::remove_dir_all(&data)?;
    }
    std::fs::create_dir_all(&data)?;
    std::fs::write(dir.join("rabbitmq.conf"), settings)?;
    std::fs::write(dir.join("enabled_plugins"), "[rabbitmq_management].\n")?;
    Ok(())
}
