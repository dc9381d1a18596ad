//! Private servers: a Redis, a RabbitMQ and a MySQL of our own, next to whatever else runs on this machine.
//!
//! Invariants: they listen on 127.0.0.1 only, on ports that were free; they read no configuration of the system; their
//! data and logs lie under the directory they were given; no process of theirs survives a stop, a drop, or (where
//! `setpriv` is present) our own death.

mod addresses;
mod cluster;
mod mysql;
mod port;
mod process;
mod programs;
mod rabbitmq;
mod ready;
mod redis;
mod run_dir;
mod tls;

use std::path::Path;

pub use addresses::Addresses;
pub use cluster::{Move, RedisCluster};
pub use mysql::MySql;
pub use port::free_port;
pub use process::{Launch, Process, find_program};
pub use programs::Choice;
pub use rabbitmq::RabbitMq;
pub use ready::until_ready;
pub use redis::{Fsync, Redis};
pub use run_dir::{RunDir, workspace_root};
pub use tls::{Certificates, Flaw};

/// The three servers that Onrush needs.
#[derive(Debug)]
pub struct Servers {
    /// Holds the places.
    pub redis: Redis,
    /// Carries the facts.
    pub rabbitmq: RabbitMq,
    /// Keeps the rows.
    pub mysql: MySql,
}

impl Servers {
    /// Starts all three side by side, each in a folder of `dir`, and waits until each is healthy.
    pub async fn start(dir: &Path) -> anyhow::Result<Self> {
        Self::start_with(dir, Fsync::default()).await
    }

    /// [`Servers::start`] with another care of Redis for its file.
    pub async fn start_with(dir: &Path, fsync: Fsync) -> anyhow::Result<Self> {
        let (redis, rabbitmq, mysql) = tokio::try_join!(
            async { Redis::start_with(&dir.join("redis"), fsync).await },
            async { RabbitMq::start(&dir.join("rabbitmq")).await },
            async { MySql::start(&dir.join("mysql")).await },
        )?;
        Ok(Self { redis, rabbitmq, mysql })
    }

    /// Starts all three so that they take connections over TLS only, with these certificates.
    pub async fn start_over_tls(dir: &Path, tls: &Certificates) -> anyhow::Result<Self> {
        let (redis, rabbitmq, mysql) = tokio::try_join!(
            async { Redis::start_over_tls(&dir.join("redis"), tls).await },
            async { RabbitMq::start_over_tls(&dir.join("rabbitmq"), tls).await },
            async { MySql::start_over_tls(&dir.join("mysql"), tls).await },
        )?;
        Ok(Self { redis, rabbitmq, mysql })
    }

    /// The settings that lead a function or a test to these servers.
    #[must_use]
    pub fn env(&self) -> Vec<(String, String)> {
        Addresses::of(self).env()
    }

    /// Stops all three side by side, for good. RabbitMQ is killed: its orderly stop waits six seconds for statistics
    /// that nobody will read.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        self.rabbitmq.kill().await?;
        let (redis, rabbitmq, mysql) = tokio::join!(self.redis.stop(), self.rabbitmq.stop(), self.mysql.stop());
        redis.and(rabbitmq).and(mysql)
    }
}
