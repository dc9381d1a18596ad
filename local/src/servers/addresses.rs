//! Where the three servers are, whoever runs them.

use anyhow::Context;

use super::Servers;

/// Their addresses, with logins.
#[derive(Clone)]
pub struct Addresses {
    /// `REDIS_URL`
    pub redis_url: String,
    /// `REDIS_CLUSTER`: that address leads to a cluster.
    pub redis_cluster: bool,
    /// `AMQP_URL`
    pub amqp_url: String,
    /// `MYSQL_URL`
    pub mysql_url: String,
    /// `RABBITMQ_MANAGEMENT_URL`, the console; a given broker may have none.
    pub management_url: Option<String>,
}

/// Addresses carry passwords.
impl std::fmt::Debug for Addresses {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Addresses")
    }
}

impl Addresses {
    /// Those of servers that we started.
    #[must_use]
    pub fn of(servers: &Servers) -> Self {
        Self {
            redis_url: servers.redis.url().to_owned(),
            redis_cluster: false,
            amqp_url: servers.rabbitmq.url().to_owned(),
            mysql_url: servers.mysql.url().to_owned(),
            management_url: Some(servers.rabbitmq.management_url().to_owned()),
        }
    }

    /// Those in the environment, which must name all three.
    pub fn given() -> anyhow::Result<Self> {
        Self::among(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
    }

    fn among(lookup: impl Fn(&str) -> Option<String>) -> anyhow::Result<Self> {
        let required = |name| {
            lookup(name).with_context(|| {
                format!("{name} is not set; ONRUSH_SERVERS=given needs REDIS_URL, AMQP_URL and MYSQL_URL")
            })
        };
        Ok(Self {
            redis_url: required("REDIS_URL")?,
            redis_cluster: lookup("REDIS_CLUSTER").is_some_and(|value| value == "true"),
            amqp_url: required("AMQP_URL")?,
            mysql_url: required("MYSQL_URL")?,
            management_url: lookup("RABBITMQ_MANAGEMENT_URL"),
        })
    }

    /// The settings that lead a function or a test there.
    #[must_use]
    pub fn env(&self) -> Vec<(String, String)> {
        [
            ("REDIS_URL", Some(self.redis_url.as_str())),
            ("REDIS_CLUSTER", self.redis_cluster.then_some("true")),
            ("AMQP_URL", Some(&self.amqp_url)),
            ("RABBITMQ_MANAGEMENT_URL", self.management_url.as_deref()),
            ("MYSQL_URL", Some(&self.mysql_url)),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())))
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_three_servers_must_be_given_but_not_the_console() {
        let given = |missing| Addresses::among(move |name| (name != missing).then(|| format!("{name} with hunter2")));
        let addresses = given("RABBITMQ_MANAGEMENT_URL").unwrap();
        assert_eq!(addresses.env().len(), 3);
        assert!(!format!("{addresses:?}").contains("hunter2"));
        let cluster = Addresses::among(|name| Some(if name == "REDIS_CLUSTER" { "true" } else { "url" }.to_owned()));
        assert!(cluster.unwrap().env().contains(&("REDIS_CLUSTER".to_owned(), "true".to_owned())));
        for missing in ["REDIS_URL", "AMQP_URL", "MYSQL_URL"] {
            assert!(given(missing).unwrap_err().to_string().starts_with(missing));
        }
    }
}
