//! Invoking functions through the emulator of the Lambda service.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde_json::Value;
use tokio::sync::watch;

use crate::https;

/// The longest a Lambda function may run as a consumer of a broker.
const INVOCATION_LIMIT: Duration = Duration::from_secs(14 * 60);

/// How often each function ended and was started again.
pub(super) type Ended = HashMap<&'static str, u64>;

/// Invokes functions; cheap to clone.
#[derive(Debug, Clone)]
pub struct Invoker {
    client: reqwest::Client,
    base_url: String,
    ended: watch::Receiver<Ended>,
}

impl Invoker {
    /// For the emulator at this address, `http://host:port`.
    pub(super) fn new(base_url: String, ended: watch::Receiver<Ended>) -> anyhow::Result<Self> {
        // The emulator speaks plain HTTP, so a machine without certificates will do.
        let client = https::client_builder().tls_certs_only([]).timeout(INVOCATION_LIMIT).build()?;
        Ok(Self { client, base_url, ended })
    }

    /// The address of the emulator, and so of the API.
    #[must_use]
    pub fn base_url(&self) -> &str {
        &self.base_url
    }

    /// Invokes a function and waits for its answer; an error of the function is an error here. So is its end: the
    /// emulator would leave us waiting for an answer that nobody is going to give.
    pub async fn invoke(&self, function: &str, event: &Value) -> anyhow::Result<Value> {
        let mut ended = self.ended.clone();
        let times = |ended: &Ended| ended.get(function).copied();
        let before = times(&ended.borrow());
        tokio::select! {
            answer = self.ask(function, event) => answer,
            Ok(_) = ended.wait_for(|now| times(now) > before) => bail!("{function} ended while it ran"),
        }
    }

    async fn ask(&self, function: &str, event: &Value) -> anyhow::Result<Value> {
        let url = format!("{}/2015-03-31/functions/{function}/invocations", self.base_url);
        let answer = self.client.post(url).json(event).send().await;
        let answer = answer.with_context(|| format!("{function} could not be invoked"))?;
        let status = answer.status();
        let body = answer.text().await.with_context(|| format!("the answer of {function} broke off"))?;
        let body: Value = serde_json::from_str(&body).unwrap_or(Value::String(body));
        if let Some(message) = body.get("errorMessage") {
            bail!("{function} failed: {}", message.as_str().unwrap_or(&message.to_string()));
        }
        ensure!(status.is_success(), "{function} failed: {status} {body}");
        Ok(body)
    }

    /// Whether the function behind a path of the API answers anything but a server error.
    pub(super) async fn answers(&self, path: &str) -> anyhow::Result<()> {
        let status = self.client.get(format!("{}{path}", self.base_url)).send().await?.status();
        ensure!(!status.is_server_error(), "GET {path} is answered with {status}");
        Ok(())
    }
}
