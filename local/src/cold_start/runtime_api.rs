//! A Lambda Runtime API for one execution environment, as small as can be: it hands out events and takes replies.
//!
//! See "Using the Lambda runtime API for custom runtimes" in the AWS Lambda developer guide.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinHandle;

const INVOCATION_LIMIT: Duration = Duration::from_secs(30);

/// What the function says of an event: its reply, or what went wrong.
type Said = Result<Bytes, String>;

/// The server, for one process that asks it for events.
#[derive(Debug)]
pub struct RuntimeApi {
    address: String,
    events: mpsc::Sender<Bytes>,
    said: mpsc::Receiver<Said>,
    serving: JoinHandle<()>,
}

#[derive(Clone)]
struct Shared {
    events: Arc<Mutex<mpsc::Receiver<Bytes>>>,
    said: mpsc::Sender<Said>,
}

impl RuntimeApi {
    /// Starts one on a free port.
    pub async fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?.to_string();
        let (events, asked) = mpsc::channel(1);
        let (answered, said) = mpsc::channel(1);
        let shared = Shared { events: Arc::new(Mutex::new(asked)), said: answered };
        let router = Router::new()
            .route("/2018-06-01/runtime/invocation/next", get(next))
            .route("/2018-06-01/runtime/invocation/{id}/response", post(response))
            .route("/2018-06-01/runtime/invocation/{id}/error", post(failure))
            .route("/2018-06-01/runtime/init/error", post(failure))
            .with_state(shared);
        let serving = tokio::spawn(async move {
            // Ends with the task; without it the function is told by its connection.
            let _ = axum::serve(listener, router).await;
        });
        Ok(Self { address, events, said, serving })
    }

    /// A value for `AWS_LAMBDA_RUNTIME_API`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Hands the event over as soon as it is asked for, and waits for the reply.
    pub async fn invoke(&mut self, event: &Value) -> anyhow::Result<Value> {
        self.events.send(serde_json::to_vec(event)?.into()).await.context("the runtime API has ended")?;
        let said = tokio::time::timeout(INVOCATION_LIMIT, self.said.recv()).await;
        match said.with_context(|| format!("no reply within {INVOCATION_LIMIT:?}"))? {
            Some(Ok(reply)) => Ok(serde_json::from_slice(&reply)?),
            Some(Err(error)) => bail!("the function failed: {error}"),
            None => bail!("the runtime API has ended"),
        }
    }
}

impl Drop for RuntimeApi {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn next(State(shared): State<Shared>) -> Response {
    let Some(event) = shared.events.lock().await.recv().await else {
        return StatusCode::GONE.into_response();
    };
    let deadline = SystemTime::now() + INVOCATION_LIMIT;
    let deadline_ms = deadline.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis().to_string();
    let headers = [
        ("lambda-runtime-aws-request-id", "8476a536-e9f4-11e8-9739-2dfe598c3fcd".to_owned()),
        ("lambda-runtime-deadline-ms", deadline_ms),
        ("lambda-runtime-invoked-function-arn", "arn:aws:lambda:eu-central-1:123456789012:function:any".to_owned()),
    ];
    (headers, event).into_response()
}

async fn response(State(shared): State<Shared>, reply: Bytes) -> StatusCode {
    tell(&shared, Ok(reply)).await
}

async fn failure(State(shared): State<Shared>, error: Bytes) -> StatusCode {
    tell(&shared, Err(String::from_utf8_lossy(&error).into_owned())).await
}

async fn tell(shared: &Shared, said: Said) -> StatusCode {
    match shared.said.send(said).await {
        Ok(()) => StatusCode::ACCEPTED,
        Err(_) => StatusCode::GONE,
    }
}
