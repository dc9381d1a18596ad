//! A stand-in for AWS Secrets Manager: it knows one call, and refuses what is not signed as AWS wants it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use aws_sigv4::http_request::{SignableBody, SignableRequest, SigningSettings, sign};
use aws_sigv4::sign::v4;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::Settings;
use crate::http::{RawRequest, answer, read_request};

const REGION: &str = "eu-central-1";
const KEY_ID: &str = "AKIDEXAMPLE";
const KEY: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
const TOKEN: &str = "session-token";

/// The server.
pub struct SecretsManager {
    port: u16,
    state: Arc<Mutex<State>>,
    serving: JoinHandle<()>,
}

#[derive(Default)]
struct State {
    secrets: HashMap<String, String>,
    asked: Vec<String>,
    trouble: Option<Trouble>,
}

/// What is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It answers with an error of the server.
    Errors,
    /// It never answers.
    Silence,
}

impl SecretsManager {
    /// Starts it without a secret.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(Mutex::new(State::default()));
        let shared = Arc::clone(&state);
        let serving = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let shared = Arc::clone(&shared);
                tokio::spawn(async move {
                    let request = read_request(&mut stream).await;
                    let reply = get_secret_value(&request, &mut shared.lock().unwrap());
                    match reply {
                        Some((status, body)) => answer(&mut stream, status, &body.to_string()).await,
                        None => std::future::pending().await,
                    }
                });
            }
        });
        Self { port, state, serving }
    }

    /// The name of a secret.
    pub fn arn(name: &str) -> String {
        format!("arn:aws:secretsmanager:{REGION}:123456789012:secret:{name}-a1b2c3")
    }

    /// Keeps a login, or changes it.
    pub fn keep(&self, secret_id: &str, username: &str, password: &str) {
        self.keep_text(secret_id, &json!({"username": username, "password": password, "engine": "any"}).to_string());
    }

    /// Keeps any text.
    pub fn keep_text(&self, secret_id: &str, text: &str) {
        self.state.lock().unwrap().secrets.insert(secret_id.to_owned(), text.to_owned());
    }

    /// From now on, or no longer.
    pub fn set_trouble(&self, trouble: Option<Trouble>) {
        self.state.lock().unwrap().trouble = trouble;
    }

    /// Which secrets were asked for so far, in order.
    pub fn asked(&self) -> Vec<String> {
        self.state.lock().unwrap().asked.clone()
    }

    /// The settings that lead a function there, with credentials as Lambda sets them.
    pub fn settings(&self) -> Settings {
        [
            ("AWS_ENDPOINT_URL_SECRETS_MANAGER", format!("http://127.0.0.1:{}", self.port)),
            ("AWS_REGION", REGION.to_owned()),
            ("AWS_ACCESS_KEY_ID", KEY_ID.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", KEY.to_owned()),
            ("AWS_SESSION_TOKEN", TOKEN.to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }
}

impl Drop for SecretsManager {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

fn get_secret_value(request: &RawRequest, state: &mut State) -> Option<(u16, Value)> {
    assert_eq!(request.line, "POST / HTTP/1.1");
    assert_eq!(request.header("x-amz-target"), "secretsmanager.GetSecretValue");
    assert_eq!(request.header("x-amz-security-token"), TOKEN);
    assert_eq!(request.header("authorization"), signature(request), "signed as it was sent");
    let body: Value = serde_json::from_slice(&request.body).unwrap();
    let secret_id = body["SecretId"].as_str().unwrap();
    state.asked.push(secret_id.to_owned());
    Some(match (state.trouble, state.secrets.get(secret_id)) {
        (Some(Trouble::Silence), _) => return None,
        (Some(Trouble::Errors), _) => (500, json!({"__type": "InternalServiceError", "message": "down"})),
        (None, Some(text)) => (200, json!({"ARN": secret_id, "Name": "login", "VersionId": "1", "SecretString": text})),
        (None, None) => {
            let kind = "com.amazonaws.secretsmanager#ResourceNotFoundException";
            (400, json!({"__type": kind, "Message": "Secrets Manager can't find the specified secret."}))
        }
    })
}

/// The signature of the request as it came in: host, headers, time and body are those that were received.
fn signature(request: &RawRequest) -> String {
    let sent = jiff::civil::DateTime::strptime("%Y%m%dT%H%M%SZ", request.header("x-amz-date")).unwrap();
    let sent = jiff::tz::Offset::UTC.to_timestamp(sent).unwrap().as_second();
    let sent = SystemTime::UNIX_EPOCH + Duration::from_secs(sent.unsigned_abs());
    let credentials = aws_credential_types::Credentials::new(KEY_ID, KEY, Some(TOKEN.into()), None, "test");
    let identity = credentials.into();
    let params = v4::SigningParams::builder()
        .identity(&identity)
        .region(REGION)
        .name("secretsmanager")
        .time(sent)
        .settings(SigningSettings::default())
        .build()
        .unwrap();
    let headers = ["content-type", "x-amz-target"].map(|name| (name, request.header(name)));
    let uri = format!("http://{}/", request.header("host"));
    let body = SignableBody::Bytes(&request.body);
    let to_sign = SignableRequest::new("POST", uri, headers.into_iter(), body).unwrap();
    let (instructions, _) = sign(to_sign, &params.into()).unwrap().into_parts();
    let (headers, _) = instructions.into_parts();
    let authorization = headers.iter().find(|header| header.name() == "authorization").unwrap();
    authorization.value().to_owned()
}
