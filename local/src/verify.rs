//! The promises, checked by identity: who was granted a place, who has a row, and whether these are the same people.
//!
//! Reads only. Expects a system at rest: what is still on its way shows as a finding, and rightly so.

mod compare;
mod drain;
mod findings;
mod handed_out;
mod print;
mod stores;
mod walk;

use std::convert::Infallible;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use shared::config::{BrokerConfig, Env, MysqlConfig, RedisConfig, Secret, Topology};
use shared::domain::ActivityId;

use crate::up::queues;
pub use drain::{Drained, Underway, drain};
pub use findings::{
    Findings, Malformed, Miscounted, Missing, NAMED, Named, Note, Oversold, Place, SharedPlace, Standing, Twice,
};
pub use handed_out::HandedOut;
pub(crate) use print::offenders;
pub(crate) use stores::Stores;

/// What must be true of a system at rest.
const INVARIANTS: &str = "\
What must be true once nothing is on its way any more:
  lost        everybody who holds a granted receipt has an active row in MySQL
  unexpected  everybody with an active row was granted a place
  differing   receipt and row of a person tell the same: status, version, place, time
  twice       nobody has two places, and no place has two people
  oversold    active people never exceed the capacity, in Redis or in MySQL
  miscounted  the counts that are kept (taken, sequence, activity.active) are those of the people counted one by one
  missing     Redis and MySQL know the same activities
  malformed   no receipt and no row has another form
  outbox, queued, parked   nothing waits: no outbox note, no message in any queue, none in the parked queue
It reads only. During a sale what is on its way shows as a finding; --drain-secs waits for it. The exit status is 0 only
if nothing was found. People whom MySQL refuses since Redis lost writes show as lost: reconcile names them as a surplus.";

/// Options of `local verify`.
#[derive(clap::Args, Debug)]
#[command(after_help = INVARIANTS)]
pub struct Args {
    #[command(flatten)]
    settings: Settings,
    /// Check this activity only
    #[arg(long, value_name = "ID")]
    activity: Option<ActivityId>,
    /// Check these receipts too, as `local sale --receipts` writes them
    #[arg(long, value_name = "FILE")]
    receipts: Option<PathBuf>,
    /// Wait at most this long until queue and outbox are empty
    #[arg(long, default_value_t = 0, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(0..=86_400))]
    drain_secs: u64,
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
}

/// Where the three parts are.
#[derive(clap::Args, Clone, Debug)]
pub struct Settings {
    /// Redis, redis:// or rediss://
    #[arg(long, env = "REDIS_URL", hide_env_values = true, value_name = "URL", value_parser = secret)]
    pub redis_url: Secret,
    /// That address leads to a cluster
    #[arg(long, env = "REDIS_CLUSTER", default_value_t = false, num_args = 0..=1, default_missing_value = "true",
          action = clap::ArgAction::Set)]
    pub redis_cluster: bool,
    /// RabbitMQ, amqp:// or amqps://
    #[arg(long, env = "AMQP_URL", hide_env_values = true, value_name = "URL", value_parser = secret)]
    pub amqp_url: Secret,
    /// MySQL, mysql://
    #[arg(long, env = "MYSQL_URL", hide_env_values = true, value_name = "URL", value_parser = secret)]
    pub mysql_url: Secret,
    /// The queue of sign-ups; the parked queue is named after it
    #[arg(long = "signup-queue", env = "SIGNUP_QUEUE", default_value = "activity.signup.queue", value_name = "NAME")]
    pub queue: String,
    /// How many queues share the sign-ups
    #[arg(long = "signup-queues", env = "SIGNUP_QUEUES", default_value_t = 1, value_name = "N", value_parser = queues())]
    pub queues: u16,
    /// Logins and authorities, by the names of their settings.
    #[arg(skip = of_endpoints(std::env::vars()))]
    of_endpoints: Vec<(String, Secret)>,
}

/// Those settings of the functions that say how to log in and whom to trust.
fn of_endpoints(variables: impl Iterator<Item = (String, String)>) -> Vec<(String, Secret)> {
    let is_one = |name: &str| name == "TLS_CA_FILE" || name.ends_with("_SECRET_ARN") || name.starts_with("AWS_");
    variables.filter(|(name, _)| is_one(name)).map(|(name, value)| (name, Secret::new(value))).collect()
}

fn secret(text: &str) -> Result<Secret, Infallible> {
    Ok(Secret::new(text))
}

impl Settings {
    /// Finds the settings among these variables, the way a function does.
    pub fn from_variables(variables: &[(String, String)]) -> anyhow::Result<Self> {
        let lookup = |name: &str| variables.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
        let required = |name: &str| lookup(name).map(Secret::new).with_context(|| format!("{name} is not set"));
        let Topology { queue, queues, .. } = Topology::from_env(&Env::new(&lookup))?;
        let (redis_url, amqp_url) = (required("REDIS_URL")?, required("AMQP_URL")?);
        let of_endpoints = of_endpoints(variables.iter().cloned());
        let redis_cluster = lookup("REDIS_CLUSTER").is_some_and(|value| value == "true");
        Ok(Self { redis_url, redis_cluster, amqp_url, mysql_url: required("MYSQL_URL")?, queue, queues, of_endpoints })
    }

    /// The names on the broker.
    pub fn topology(&self) -> anyhow::Result<Topology> {
        Ok(Topology::from_env(&Env::new(&|name| self.variable(name)))?)
    }

    /// The servers, with the logins and the authorities that the environment names.
    pub fn servers(&self) -> anyhow::Result<(RedisConfig, BrokerConfig, MysqlConfig)> {
        let lookup = |name: &str| self.variable(name);
        let env = Env::new(&lookup);
        Ok((RedisConfig::from_env(&env)?, BrokerConfig::from_env(&env)?, MysqlConfig::from_env(&env)?))
    }

    fn variable(&self, name: &str) -> Option<String> {
        match name {
            "REDIS_URL" => Some(self.redis_url.expose().to_owned()),
            "REDIS_CLUSTER" => Some(self.redis_cluster.to_string()),
            "AMQP_URL" => Some(self.amqp_url.expose().to_owned()),
            "MYSQL_URL" => Some(self.mysql_url.expose().to_owned()),
            "SIGNUP_QUEUE" => Some(self.queue.clone()),
            "SIGNUP_QUEUES" => Some(self.queues.to_string()),
            _ => {
                let kept = self.of_endpoints.iter().find(|(known, _)| known == name);
                kept.map(|(_, value)| value.expose().to_owned())
            }
        }
    }
}

/// Checks what the options name and prints what was found.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let handed_out = args.receipts.as_deref().map(HandedOut::read).transpose()?.unwrap_or_default();
    if args.drain_secs > 0 {
        let drained = drain(&args.settings, args.activity, Duration::from_secs(args.drain_secs)).await?;
        if !drained.left.is_empty() {
            eprintln!("not drained within {} s: {}", args.drain_secs, drained.left);
        }
    }
    let findings = verify(&args.settings, args.activity, &handed_out).await?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&findings)?);
    } else {
        print!("{}", print::report(&findings));
    }
    Ok(if findings.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Checks one activity, or all of them, and the receipts that people were handed there.
pub async fn verify(
    settings: &Settings,
    activity: Option<ActivityId>,
    handed_out: &HandedOut,
) -> anyhow::Result<Findings> {
    let mut stores = Stores::connect(settings).await?;
    let mut findings = Findings::default();
    let ids = match activity {
        Some(id) => [id].into(),
        None => stores.activity_ids().await?,
    };
    for id in ids {
        walk::walk(&mut stores, id, &mut findings).await.with_context(|| format!("checking activity {id}"))?;
    }
    handed_out.check(&mut stores, activity, &mut findings).await.context("checking the receipts")?;
    (findings.queued, findings.parked) = stores.backlog().await?;
    stores.close().await?;
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(names: &[&str]) -> Vec<(String, String)> {
        names.iter().map(|name| ((*name).to_owned(), format!("{name} with hunter2"))).collect()
    }

    #[test]
    fn the_settings_are_found_among_the_variables_and_print_no_address() {
        let settings = Settings::from_variables(&variables(&["REDIS_URL", "AMQP_URL", "MYSQL_URL"])).unwrap();
        assert_eq!(settings.queue, "activity.signup.queue");
        assert_eq!(settings.topology().unwrap().parked_queue(), "activity.signup.parked");
        let several = [variables(&["REDIS_URL", "AMQP_URL", "MYSQL_URL"]), vec![("SIGNUP_QUEUES".into(), "2".into())]];
        let settings = Settings::from_variables(&several.concat()).unwrap();
        assert_eq!(settings.topology().unwrap().queue_names(), ["activity.signup.queue", "activity.signup.queue.1"]);
        assert!(!format!("{settings:?}").contains("hunter2"));
        assert!(!settings.redis_cluster);
        let cluster = [("REDIS_CLUSTER".to_owned(), "true".to_owned())];
        let names = ["REDIS_URL", "AMQP_URL", "MYSQL_URL"];
        assert!(Settings::from_variables(&[variables(&names), cluster.to_vec()].concat()).unwrap().redis_cluster);
        let error = Settings::from_variables(&variables(&["REDIS_URL", "AMQP_URL"])).unwrap_err();
        assert_eq!(error.to_string(), "MYSQL_URL is not set");
    }
}
