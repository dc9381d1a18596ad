//! Logins from AWS Secrets Manager: the one call `GetSecretValue`, signed with the function's own credentials.
//!
//! Only the signer of the AWS SDK is used: a program of nothing but the SDK's client for this call has 4 MB, which each cold
//! start would load. The call is a POST with the target `secretsmanager.GetSecretValue`; see "GetSecretValue" in the AWS Secrets
//! Manager API reference.

use std::time::{Duration, SystemTime};

use aws_sigv4::http_request::{SignableBody, SignableRequest, SigningSettings, sign};
use aws_sigv4::sign::v4;
use http::{Request, Response, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde::Deserialize;
use tokio::time::timeout;
use url::Url;

use crate::config::Secret;

/// The longest that one try may take.
const TIMEOUT: Duration = Duration::from_secs(1);

/// A call that got no answer, or a "try again", is tried this often in all.
const TRIES: u32 = 2;

/// How long to wait before the next try.
const PAUSE: Duration = Duration::from_millis(100);

/// A secret has at most 65,536 bytes; JSON may escape each.
const LARGEST_ANSWER: usize = 512 * 1024;

const TARGET: &str = "secretsmanager.GetSecretValue";

/// The credentials of the function, as Lambda hands them over.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// `AWS_ACCESS_KEY_ID`
    pub access_key_id: String,
    /// `AWS_SECRET_ACCESS_KEY`
    pub secret_access_key: Secret,
    /// `AWS_SESSION_TOKEN`
    pub session_token: Option<Secret>,
}

/// Secrets Manager of one region.
#[derive(Clone, Debug)]
pub struct SecretsManager {
    /// Where it is.
    pub endpoint: Uri,
    /// The region that requests are signed for.
    pub region: String,
    /// Who asks.
    pub credentials: Credentials,
}

/// The login of a server could not be had.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SecretsManagerError {
    /// It did not answer, or not in time.
    #[error("secrets manager is unavailable: {0}")]
    Unavailable(String),
    /// It refused, for example because the function may not read the secret.
    #[error("secrets manager refuses the secret {secret_id:?}: {reason}")]
    Refused {
        /// Which.
        secret_id: String,
        /// What it said.
        reason: String,
    },
    /// The secret is something else.
    #[error("the secret {0:?} holds no login; it must be JSON with \"username\" and \"password\"")]
    NoLogin(String),
}

/// What a secret holds.
#[derive(Deserialize)]
pub(super) struct Login {
    username: String,
    password: String,
}

impl Login {
    /// The address with this login in it.
    pub(super) fn into_url(self, address: &Secret) -> Option<Secret> {
        let mut url = Url::parse(address.expose()).ok()?;
        // `url` keeps a percent sign as it is, and every client would read it as the beginning of an escape.
        let escaped = |text: &str| text.replace('%', "%25");
        url.set_username(&escaped(&self.username)).ok()?;
        url.set_password(Some(&escaped(&self.password))).ok()?;
        Some(Secret::new(url.as_str()))
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    secret_string: Option<String>,
}

/// An error names its kind after a `#`, and says more in `message` or `Message`.
#[derive(Default, Deserialize)]
struct Refusal {
    #[serde(default, rename = "__type")]
    kind: String,
    #[serde(default, alias = "Message")]
    message: String,
}

impl SecretsManager {
    /// Fetches the login in this secret.
    pub(super) async fn login(&self, secret_id: &str) -> Result<Login, SecretsManagerError> {
        let mut tries = 1;
        loop {
            match self.get_secret_value(secret_id).await {
                Err(SecretsManagerError::Unavailable(_)) if tries < TRIES => {
                    tries += 1;
                    tokio::time::sleep(PAUSE).await;
                }
                outcome => return outcome,
            }
        }
    }

    async fn get_secret_value(&self, secret_id: &str) -> Result<Login, SecretsManagerError> {
        let request = self.request(secret_id)?;
        let (status, answer) = timeout(TIMEOUT, send(request))
            .await
            .map_err(|_| SecretsManagerError::Unavailable(format!("no answer within {} ms", TIMEOUT.as_millis())))??;
        if !status.is_success() {
            return Err(refusal(secret_id, status, &answer));
        }
        let no_login = || SecretsManagerError::NoLogin(secret_id.to_owned());
        let answer: Answer = serde_json::from_slice(&answer).map_err(|_| no_login())?;
        serde_json::from_str(&answer.secret_string.ok_or_else(no_login)?).map_err(|_| no_login())
    }

    fn request(&self, secret_id: &str) -> Result<Request<Full<Bytes>>, SecretsManagerError> {
        let body = serde_json::json!({ "SecretId": secret_id }).to_string();
        let headers = [("content-type", "application/x-amz-json-1.1"), ("x-amz-target", TARGET)];
        let mut request = Request::post(&self.endpoint);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let mut request = request.body(Full::from(body.clone())).map_err(unsigned)?;
        let uri = self.endpoint.to_string();
        let to_sign = SignableRequest::new("POST", uri, headers.into_iter(), SignableBody::Bytes(body.as_bytes()))
            .map_err(unsigned)?;
        let Credentials { access_key_id, secret_access_key, session_token } = &self.credentials;
        let token = session_token.as_ref().map(|token| token.expose().to_owned());
        let credentials =
            aws_credential_types::Credentials::new(access_key_id, secret_access_key.expose(), token, None, "env");
        let identity = credentials.into();
        let params = v4::SigningParams::builder()
            .identity(&identity)
            .region(&self.region)
            .name("secretsmanager")
            .time(SystemTime::now())
            .settings(SigningSettings::default())
            .build()
            .map_err(unsigned)?;
        let (instructions, _) = sign(to_sign, &params.into()).map_err(unsigned)?.into_parts();
        instructions.apply_to_request_http1x(&mut request);
        Ok(request)
    }
}

async fn send(request: Request<Full<Bytes>>) -> Result<(http::StatusCode, Bytes), SecretsManagerError> {
    let connector = HttpsConnectorBuilder::new()
        .with_provider_and_webpki_roots(rustls::crypto::ring::default_provider())
        .map_err(unavailable)?
        .https_or_http()
        .enable_http1()
        .build();
    let client: Client<_, Full<Bytes>> = Client::builder(TokioExecutor::new()).build(connector);
    let answer: Response<Incoming> = client.request(request).await.map_err(unavailable)?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), LARGEST_ANSWER).collect().await;
    Ok((status, body.map_err(|error| SecretsManagerError::Unavailable(error.to_string()))?.to_bytes()))
}

/// Servers in trouble and calls that were too many may be asked again.
fn refusal(secret_id: &str, status: http::StatusCode, answer: &[u8]) -> SecretsManagerError {
    let Refusal { kind, message } = serde_json::from_slice(answer).unwrap_or_default();
    let kind = kind.rsplit('#').next().unwrap_or_default();
    let reason = [status.as_str(), kind, &message].join(" ").trim_end().to_owned();
    if status.is_server_error() || kind.contains("Throttling") {
        SecretsManagerError::Unavailable(reason)
    } else {
        SecretsManagerError::Refused { secret_id: secret_id.to_owned(), reason }
    }
}

fn unsigned(error: impl std::fmt::Display) -> SecretsManagerError {
    SecretsManagerError::Unavailable(format!("the request could not be signed: {error}"))
}

/// Says also what is behind the error: the client's own words are "client error (Connect)".
fn unavailable(error: impl std::error::Error) -> SecretsManagerError {
    let mut reason = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        reason = format!("{reason}: {cause}");
        source = cause.source();
    }
    SecretsManagerError::Unavailable(reason)
}
