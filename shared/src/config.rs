//! Settings, read from the environment at a cold start.
//!
//! A missing or malformed one is an error of one line that names it and says what it must be. Addresses hold
//! passwords, so they are [`Secret`]s, which print nothing.

mod topology;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

pub use topology::{MAX_QUEUES, QueueType, Topology};

use crate::endpoint::{Credentials, Endpoint, SecretsManager, TrustedAuthorities};

/// A value that never shows in a log.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<str>);

impl Secret {
    /// Keeps a value.
    pub fn new(value: impl Into<Arc<str>>) -> Self {
        Self(value.into())
    }

    /// Gives the value to the client that needs it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

/// A setting keeps the function from starting.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It must be there.
    #[error("{name} is not set; it must be {expected}")]
    Missing {
        /// The variable.
        name: &'static str,
        /// What it must hold.
        expected: &'static str,
    },
    /// It has another form. The value is not shown: it may hold a password.
    #[error("{name} is malformed; it must be {expected}")]
    Malformed {
        /// The variable.
        name: &'static str,
        /// What it must hold.
        expected: &'static str,
    },
}

/// Looks up a variable: [`Env::process`] in a function, a closure in a test. An empty value counts as not set.
pub struct Env<'a>(&'a dyn Fn(&str) -> Option<String>);

impl<'a> Env<'a> {
    /// The variables of this process.
    pub fn process() -> Env<'static> {
        Env(&|name| std::env::var(name).ok())
    }

    /// The variables that `lookup` knows.
    pub fn new(lookup: &'a dyn Fn(&str) -> Option<String>) -> Self {
        Self(lookup)
    }

    fn get(&self, name: &str) -> Option<String> {
        (self.0)(name).filter(|value| !value.is_empty())
    }

    fn parse_or<T: FromStr>(&self, name: &'static str, expected: &'static str, default: T) -> Result<T, ConfigError> {
        match self.get(name) {
            None => Ok(default),
            Some(text) => text.parse().map_err(|_| ConfigError::Malformed { name, expected }),
        }
    }

    fn required(&self, name: &'static str, expected: &'static str) -> Result<String, ConfigError> {
        self.get(name).ok_or(ConfigError::Missing { name, expected })
    }

    /// The address of a server, and the login and the authorities that belong to it.
    fn endpoint(&self, names: &EndpointNames, is_valid: impl FnOnce(&str) -> bool) -> Result<Endpoint, ConfigError> {
        let EndpointNames { url: name, expected, secret_id } = *names;
        let url = self.required(name, expected)?;
        if !is_valid(&url) {
            return Err(ConfigError::Malformed { name, expected });
        }
        let endpoint = Endpoint::new(Secret::new(url.as_str())).trusting(self.trusted_authorities()?);
        let Some(secret) = self.get(secret_id) else { return Ok(endpoint) };
        if url::Url::parse(&url).is_ok_and(|url| !url.username().is_empty() || url.password().is_some()) {
            let expected = "not set where the address holds a login";
            return Err(ConfigError::Malformed { name: secret_id, expected });
        }
        Ok(endpoint.with_login(secret, self.secrets_manager()?))
    }

    fn trusted_authorities(&self) -> Result<Option<TrustedAuthorities>, ConfigError> {
        let name = "TLS_CA_FILE";
        let malformed = ConfigError::Malformed { name, expected: "a readable PEM file of certificate authorities" };
        let Some(path) = self.get(name) else { return Ok(None) };
        match std::fs::read_to_string(path).map(TrustedAuthorities::parse) {
            Ok(Ok(authorities)) => Ok(Some(authorities)),
            _ => Err(malformed),
        }
    }

    /// As Lambda and the AWS SDKs name these settings; see "Service-specific endpoints" in the AWS SDKs and Tools Reference Guide.
    fn secrets_manager(&self) -> Result<SecretsManager, ConfigError> {
        let as_lambda_sets_it = "as Lambda sets it, since a login is in Secrets Manager";
        let region = self.required("AWS_REGION", as_lambda_sets_it)?;
        let suffix = if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" };
        let (name, expected) = ("AWS_ENDPOINT_URL_SECRETS_MANAGER", "an http:// or https:// address");
        let endpoint = self.get(name).unwrap_or_else(|| format!("https://secretsmanager.{region}.{suffix}/"));
        let is_valid = |uri: &http::Uri| matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some();
        let endpoint = endpoint.parse().ok().filter(is_valid).ok_or(ConfigError::Malformed { name, expected })?;
        let credentials = Credentials {
            access_key_id: self.required("AWS_ACCESS_KEY_ID", as_lambda_sets_it)?,
            secret_access_key: Secret::new(self.required("AWS_SECRET_ACCESS_KEY", as_lambda_sets_it)?),
            session_token: self.get("AWS_SESSION_TOKEN").map(Secret::new),
        };
        Ok(SecretsManager { endpoint, region, credentials })
    }

    fn millis(&self, name: &'static str, default_ms: u64) -> Result<Duration, ConfigError> {
        let expected = "a time in milliseconds, from 1 to 60000";
        let ms = self.parse_or(name, expected, default_ms)?;
        if (1..=60_000).contains(&ms) {
            Ok(Duration::from_millis(ms))
        } else {
            Err(ConfigError::Malformed { name, expected })
        }
    }

    /// AMQP 0-9-1 names are short strings of 255 bytes, of which those that are made from this one may need some.
    fn short_string(&self, name: &'static str, default: &str) -> Result<String, ConfigError> {
        let value = self.get(name).unwrap_or_else(|| default.to_owned());
        if value.len() <= topology::LONGEST_NAME {
            Ok(value)
        } else {
            Err(ConfigError::Malformed { name, expected: "a name of at most 248 bytes" })
        }
    }
}

/// The settings that lead to one server.
struct EndpointNames {
    url: &'static str,
    expected: &'static str,
    secret_id: &'static str,
}

fn has_scheme(url: &str, schemes: [&str; 2]) -> bool {
    url.split_once("://").is_some_and(|(scheme, rest)| schemes.contains(&scheme) && !rest.is_empty())
}

/// Where the reservations are.
#[derive(Clone, Debug)]
pub struct RedisConfig {
    /// `REDIS_URL`, `redis://` or `rediss://`, with the login of `REDIS_SECRET_ARN`.
    pub endpoint: Endpoint,
    /// `REDIS_CLUSTER` (`false`): the address is a node of a cluster, or leads to one.
    pub cluster: bool,
    /// `REDIS_TIMEOUT_MS` (1000): the longest that one call may take, with connecting and one retry.
    pub timeout: Duration,
    /// `OUTBOX_GRACE_SECS` (60): how long a sign-up may be on its way before the relay sends it again.
    pub outbox_grace: Duration,
    /// `REDIS_WAIT_REPLICAS` (0) and `REDIS_WAIT_TIMEOUT_MS` (100): what a grant must reach before it counts as safe.
    pub wait: Option<ReplicaWait>,
}

/// How many replicas must hold a write, and how long to wait for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaWait {
    /// At least one.
    pub replicas: u32,
    /// Shorter than `REDIS_TIMEOUT_MS`.
    pub timeout: Duration,
}

impl RedisConfig {
    /// Reads the settings.
    pub fn from_env(env: &Env<'_>) -> Result<Self, ConfigError> {
        let names = EndpointNames {
            url: "REDIS_URL",
            expected: "redis://HOST:PORT or rediss://HOST:PORT",
            secret_id: "REDIS_SECRET_ARN",
        };
        let endpoint =
            env.endpoint(&names, |url| has_scheme(url, ["redis", "rediss"]) && redis::Client::open(url).is_ok())?;
        let name = "OUTBOX_GRACE_SECS";
        let expected = "a time in seconds, from 1 to 86400";
        let grace_secs = env.parse_or(name, expected, 60)?;
        if !(1..=86_400).contains(&grace_secs) {
            return Err(ConfigError::Malformed { name, expected });
        }
        let cluster = env.parse_or("REDIS_CLUSTER", "true or false", false)?;
        let timeout = env.millis("REDIS_TIMEOUT_MS", 1_000)?;
        let wait = Self::wait(env, timeout)?;
        Ok(Self { endpoint, cluster, timeout, outbox_grace: Duration::from_secs(grace_secs), wait })
    }

    fn wait(env: &Env<'_>, redis_timeout: Duration) -> Result<Option<ReplicaWait>, ConfigError> {
        let (name, expected) = ("REDIS_WAIT_REPLICAS", "a number of replicas, from 0 to 10");
        let replicas = env.parse_or(name, expected, 0)?;
        if replicas > 10 {
            return Err(ConfigError::Malformed { name, expected });
        }
        let name = "REDIS_WAIT_TIMEOUT_MS";
        let timeout = env.millis(name, 100)?;
        if replicas > 0 && timeout >= redis_timeout {
            let expected = "a time in milliseconds, shorter than REDIS_TIMEOUT_MS";
            return Err(ConfigError::Malformed { name, expected });
        }
        Ok((replicas > 0).then_some(ReplicaWait { replicas, timeout }))
    }
}

/// Where sign-ups are published.
#[derive(Clone, Debug)]
pub struct BrokerConfig {
    /// `AMQP_URL`, `amqp://` or `amqps://`, with the login of `AMQP_SECRET_ARN`.
    pub endpoint: Endpoint,
    /// The names on the broker.
    pub topology: Topology,
    /// `PUBLISH_TIMEOUT_MS` (500): the longest that a request waits for the broker.
    pub publish_timeout: Duration,
}

impl BrokerConfig {
    /// Reads the settings.
    pub fn from_env(env: &Env<'_>) -> Result<Self, ConfigError> {
        let names = EndpointNames {
            url: "AMQP_URL",
            expected: "amqp://USER:PASSWORD@HOST:PORT or amqps://USER:PASSWORD@HOST:PORT",
            secret_id: "AMQP_SECRET_ARN",
        };
        let endpoint = env
            .endpoint(&names, |url| has_scheme(url, ["amqp", "amqps"]) && url.parse::<lapin::uri::AMQPUri>().is_ok())?;
        Ok(Self {
            endpoint,
            topology: Topology::from_env(env)?,
            publish_timeout: env.millis("PUBLISH_TIMEOUT_MS", 500)?,
        })
    }
}

/// How long things are kept.
#[derive(Clone, Copy, Debug)]
pub struct ReconcileConfig {
    /// `ARCHIVE_AFTER_DAYS` (7): how long after its close an activity stays in Redis.
    pub archive_after: Duration,
}

impl ReconcileConfig {
    /// Reads the settings.
    pub fn from_env(env: &Env<'_>) -> Result<Self, ConfigError> {
        let name = "ARCHIVE_AFTER_DAYS";
        let expected = "a number of days, from 1 to 3650";
        let days: u64 = env.parse_or(name, expected, 7)?;
        if !(1..=3_650).contains(&days) {
            return Err(ConfigError::Malformed { name, expected });
        }
        Ok(Self { archive_after: Duration::from_hours(24 * days) })
    }
}

/// Where the record is.
#[derive(Clone, Debug)]
pub struct MysqlConfig {
    /// `MYSQL_URL`, `mysql://`, with the login of `MYSQL_SECRET_ARN`. `?require_ssl=true` asks for TLS.
    pub endpoint: Endpoint,
}

impl MysqlConfig {
    /// Reads the settings.
    pub fn from_env(env: &Env<'_>) -> Result<Self, ConfigError> {
        let names = EndpointNames {
            url: "MYSQL_URL",
            expected: "mysql://USER:PASSWORD@HOST:PORT/DATABASE, and for TLS ?require_ssl=true, which cannot be weakened",
            secret_id: "MYSQL_SECRET_ARN",
        };
        let endpoint = env.endpoint(&names, |url| {
            mysql_async::Opts::from_url(url).is_ok_and(|opts| opts.db_name().is_some() && is_verified(&opts))
        })?;
        Ok(Self { endpoint })
    }
}

/// TLS without a check of the certificate protects from nobody who sits between.
fn is_verified(opts: &mysql_async::Opts) -> bool {
    opts.ssl_opts().is_none_or(|tls| !tls.accept_invalid_certs() && !tls.skip_domain_validation())
}

/// Who is calling.
#[derive(Clone, Debug)]
pub struct CallerConfig {
    /// `USER_ID_CLAIM` (`sub`): the JWT claim that holds the user id.
    pub user_id_claim: String,
    /// `DEV_USER_HEADER`: a header to trust instead, for local runs only. Off unless set.
    pub dev_user_header: Option<String>,
}

impl CallerConfig {
    /// Reads the settings.
    pub fn from_env(env: &Env<'_>) -> Result<Self, ConfigError> {
        let name = "DEV_USER_HEADER";
        let dev_user_header = env.get(name);
        if dev_user_header.as_ref().is_some_and(|header| header.parse::<http::HeaderName>().is_err()) {
            return Err(ConfigError::Malformed { name, expected: "a header name, for local runs only" });
        }
        Ok(Self { user_id_claim: env.get("USER_ID_CLAIM").unwrap_or_else(|| "sub".to_owned()), dev_user_header })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broker_with(name: &'static str, value: &'static str) -> Result<BrokerConfig, ConfigError> {
        let lookup = move |asked: &str| match asked {
            _ if asked == name => Some(value.to_owned()),
            "AMQP_URL" => Some("amqp://user:hunter2@broker:5672".to_owned()),
            _ => None,
        };
        BrokerConfig::from_env(&Env::new(&lookup))
    }

    #[test]
    fn settings_have_the_documented_defaults() {
        let config = broker_with("", "").unwrap();
        assert_eq!(config.publish_timeout, Duration::from_millis(500));
        assert_eq!(config.topology.exchange, "activity.signup.direct");
        assert_eq!(config.topology.queue, "activity.signup.queue");
        assert_eq!(config.topology.routing_key, "activity.signup.routing");
        assert_eq!(config.topology.dead_letter_exchange(), "activity.signup.dlx");
        assert_eq!(config.topology.parked_queue(), "activity.signup.parked");
    }

    #[test]
    fn a_missing_or_malformed_setting_is_named_in_one_line_without_its_value() {
        for (name, value) in [
            ("AMQP_URL", ""),
            ("AMQP_URL", "http://user:hunter2@broker"),
            ("AMQP_URL", "amqp://user:hunter2@broker:port"),
            ("PUBLISH_TIMEOUT_MS", "0"),
            ("PUBLISH_TIMEOUT_MS", "soon"),
            ("QUEUE_TYPE", "stream"),
            ("SIGNUP_QUEUES", "0"),
            ("SIGNUP_QUEUES", "9"),
            ("SIGNUP_QUEUES", "-1"),
            ("SIGNUP_QUEUES", "two"),
        ] {
            let line = broker_with(name, value).unwrap_err().to_string();
            assert!(line.starts_with(name) && !line.contains('\n') && !line.contains("hunter2"), "{line}");
        }
    }

    #[test]
    fn an_address_with_a_password_prints_nothing_of_it() {
        assert!(!format!("{:?}", broker_with("", "").unwrap()).contains("hunter2"));
    }

    fn redis_with(own: &[(&'static str, &'static str)]) -> Result<RedisConfig, ConfigError> {
        let lookup = |asked: &str| match own.iter().find(|(name, _)| *name == asked) {
            Some((_, value)) => Some((*value).to_owned()),
            None => (asked == "REDIS_URL").then(|| "redis://cache:6379".to_owned()),
        };
        RedisConfig::from_env(&Env::new(&lookup))
    }

    #[test]
    fn redis_is_a_cluster_only_where_told_to() {
        assert!(!redis_with(&[]).unwrap().cluster);
        assert!(!redis_with(&[("REDIS_CLUSTER", "false")]).unwrap().cluster);
        assert!(redis_with(&[("REDIS_CLUSTER", "true")]).unwrap().cluster);
        for other in ["1", "yes", "True", "true "] {
            let line = redis_with(&[("REDIS_CLUSTER", other)]).unwrap_err().to_string();
            assert_eq!(line, "REDIS_CLUSTER is malformed; it must be true or false");
        }
    }

    #[test]
    fn a_grant_waits_for_replicas_only_where_told_to_and_for_less_than_a_call_may_take() {
        assert_eq!(redis_with(&[]).unwrap().wait, None);
        assert_eq!(redis_with(&[("REDIS_WAIT_REPLICAS", "0"), ("REDIS_WAIT_TIMEOUT_MS", "5000")]).unwrap().wait, None);
        let wait = redis_with(&[("REDIS_WAIT_REPLICAS", "2")]).unwrap().wait;
        assert_eq!(wait, Some(ReplicaWait { replicas: 2, timeout: Duration::from_millis(100) }));
        let line = redis_with(&[("REDIS_WAIT_REPLICAS", "1"), ("REDIS_WAIT_TIMEOUT_MS", "1000")]).unwrap_err();
        assert!(line.to_string().starts_with("REDIS_WAIT_TIMEOUT_MS"), "{line}");
    }
}
