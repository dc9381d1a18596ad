//! Answers CloudFormation: a custom resource must put its outcome to the address in the request, or the stack waits
//! for an hour. See "Custom resource request and response objects" in the CloudFormation user guide.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{App, ProvisionError, provision};

/// Names the resource; the same for every deployment, so that an update never replaces it.
pub const PHYSICAL_RESOURCE_ID: &str = "onrush-provision";

const RESPOND_TIMEOUT: Duration = Duration::from_secs(10);

/// CloudFormation refuses an answer of more than 4,096 bytes.
const MAX_REASON_BYTES: usize = 1_024;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Request {
    request_type: RequestType,
    #[serde(rename = "ResponseURL")]
    response_url: String,
    stack_id: String,
    request_id: String,
    logical_resource_id: String,
}

#[derive(Clone, Copy, Debug, Deserialize)]
enum RequestType {
    Create,
    Update,
    Delete,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    physical_resource_id: &'static str,
    stack_id: String,
    request_id: String,
    logical_resource_id: String,
}

pub(crate) async fn handle(app: &App, event: Value) -> Result<Value, ProvisionError> {
    let request: Request = serde_json::from_value(event)?;
    let outcome = match request.request_type {
        RequestType::Create | RequestType::Update => provision(app).await.map(|_| ()),
        // The queue and the tables hold people's places; they go only by an operator's hand.
        RequestType::Delete => Ok(()),
    };
    if let Err(error) = &outcome {
        tracing::error!(%error, "provisioning failed");
    }
    let Request { response_url, stack_id, request_id, logical_resource_id, .. } = request;
    let status = if outcome.is_ok() { "SUCCESS" } else { "FAILED" };
    let reason = outcome.err().map(|error| shorten(error.to_string()));
    let physical_resource_id = PHYSICAL_RESOURCE_ID;
    let answer = Answer { status, reason, physical_resource_id, stack_id, request_id, logical_resource_id };
    respond(&response_url, &answer).await?;
    Ok(serde_json::to_value(answer)?)
}

async fn respond(url: &str, answer: &Answer) -> Result<(), ProvisionError> {
    // Fails only where a provider was chosen before, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder().timeout(RESPOND_TIMEOUT).build()?;
    // The signature of the address covers an empty content type.
    let request = client.put(url).header("content-type", "").body(serde_json::to_vec(answer)?);
    request.send().await?.error_for_status()?;
    Ok(())
}

fn shorten(reason: String) -> String {
    reason[..reason.floor_char_boundary(MAX_REASON_BYTES)].to_owned()
}
