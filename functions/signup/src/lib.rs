//! The `signup` function: takes, shows and cancels a sign-up.
//!
//! A place is granted by one script in Redis, which also notes in the outbox that MySQL does not know it yet. The
//! message to the broker is the fast path to MySQL: whatever becomes of it, the reply is the same, because the outbox
//! keeps the note until MySQL has the row.

use lambda_http::{Body, Request, RequestExt, Response};
use shared::broker::{PublishError, Publisher};
use shared::config::{BrokerConfig, CallerConfig, Env, RedisConfig};
use shared::domain::{ActivityId, Receipt, Signup};
use shared::http::{Caller, Problem, activity_id, json, path_segments};
use shared::message::TraceParent;
use shared::reservations::{Lookup, Release, Reservation, Reservations, ReservationsError};

/// What one execution environment keeps between requests.
#[derive(Clone)]
pub struct App {
    reservations: Reservations,
    publisher: Publisher,
    caller: CallerConfig,
}

impl App {
    /// Reads the settings and prepares the clients. Needs a Tokio runtime.
    pub fn from_env(env: &Env<'_>) -> Result<Self, lambda_http::Error> {
        Ok(Self {
            reservations: Reservations::new(&RedisConfig::from_env(env)?),
            publisher: Publisher::new(&BrokerConfig::from_env(env)?),
            caller: CallerConfig::from_env(env)?,
        })
    }

    /// Opens the connections, all at once. A part that is down does not keep the function from starting.
    pub async fn warm_up(&self) {
        let (redis, broker) = tokio::join!(self.reservations.warm_up(), self.publisher.warm_up());
        if let Err(error) = redis {
            tracing::warn!(%error, "starting without redis");
        }
        if let Err(error) = broker {
            tracing::warn!(%error, "starting without the broker");
        }
    }
}

/// Answers one request.
pub async fn handle(app: &App, request: Request) -> Response<Body> {
    route(app, &request).await.unwrap_or_else(Problem::into_response)
}

async fn route(app: &App, request: &Request) -> Result<Response<Body>, Problem> {
    match (request.method().as_str(), path_segments(request).as_slice()) {
        ("POST", ["activities", id, "signups"]) => sign_up(app, activity_id(id)?, request).await,
        ("GET", ["activities", id, "signups", "me"]) => show(app, activity_id(id)?, request).await,
        ("DELETE", ["activities", id, "signups", "me"]) => cancel(app, activity_id(id)?, request).await,
        (_, ["activities", _, "signups"]) => Err(Problem::method_not_allowed("POST")),
        (_, ["activities", _, "signups", "me"]) => Err(Problem::method_not_allowed("DELETE, GET")),
        _ => Err(Problem::route_not_found()),
    }
}

async fn sign_up(app: &App, id: ActivityId, request: &Request) -> Result<Response<Body>, Problem> {
    let caller = Caller::of(request, &app.caller)?;
    refuse_body(request)?;
    shared::fail_point!("signup.before-reserve");
    match or_send_on(app, app.reservations.reserve(id, &caller.user_id).await, request).await? {
        Reservation::Reserved(signup) => {
            shared::fail_point!("signup.before-publish");
            publish(app, &signup, request).await;
            shared::fail_point!("signup.before-reply");
            Ok(json(202, &Receipt::of(signup, true)))
        }
        Reservation::AlreadySignedUp { signup, queued } => Ok(json(200, &Receipt::of(signup, queued))),
        Reservation::SoldOut => Err(Problem::sold_out(id)),
        Reservation::NotOpen { opens_at } => Err(Problem::not_open(id, opens_at)),
        Reservation::Paused => Err(Problem::paused(id)),
        Reservation::Closed => Err(Problem::closed(id)),
        Reservation::ActivityNotFound => Err(Problem::activity_not_found(id)),
    }
}

async fn show(app: &App, id: ActivityId, request: &Request) -> Result<Response<Body>, Problem> {
    let caller = Caller::of(request, &app.caller)?;
    match app.reservations.find(id, &caller.user_id).await? {
        Lookup::Found { signup, queued } => Ok(json(200, &Receipt::of(signup, queued))),
        Lookup::Archived => Err(Problem::signups_archived(id)),
        Lookup::NotSignedUp => Err(Problem::not_signed_up(id)),
        Lookup::ActivityNotFound => Err(Problem::activity_not_found(id)),
    }
}

async fn cancel(app: &App, id: ActivityId, request: &Request) -> Result<Response<Body>, Problem> {
    let caller = Caller::of(request, &app.caller)?;
    refuse_body(request)?;
    shared::fail_point!("cancel.before-release");
    match or_send_on(app, app.reservations.release(id, &caller.user_id).await, request).await? {
        Release::Released(signup) => {
            shared::fail_point!("cancel.before-publish");
            publish(app, &signup, request).await;
            shared::fail_point!("cancel.before-reply");
            Ok(json(202, &Receipt::of(signup, true)))
        }
        Release::AlreadyCancelled(signup) => Ok(json(200, &Receipt::of(signup, false))),
        Release::Archived => Err(Problem::signups_archived(id)),
        Release::NotSignedUp => Err(Problem::not_signed_up(id)),
        Release::ActivityNotFound => Err(Problem::activity_not_found(id)),
    }
}

/// A fact that too few replicas hold is sent on its way all the same: in MySQL it is safe too. The caller has to ask
/// again, and is told the truth then.
async fn or_send_on<T>(
    app: &App,
    outcome: Result<T, ReservationsError>,
    request: &Request,
) -> Result<T, ReservationsError> {
    if let Err(ReservationsError::TooFewReplicas { signup: Some(signup), .. }) = &outcome {
        publish(app, signup, request).await;
    }
    outcome
}

/// Sends the fact on its way. A failure changes nothing for the caller: the outbox has the note, and a publish of
/// unknown outcome must not be undone.
async fn publish(app: &App, signup: &Signup, request: &Request) {
    let x_ray = request.lambda_context_ref().and_then(|context| context.xray_trace_id.as_deref());
    let trace = x_ray.and_then(TraceParent::from_x_ray);
    match app.publisher.publish(signup, trace.as_ref()).await {
        Ok(()) => {}
        Err(error @ PublishError::BreakerOpen) => tracing::debug!(%error, "left in the outbox"),
        Err(error) => tracing::warn!(%error, activity_id = %signup.activity_id, "left in the outbox"),
    }
}

/// What is asked for is in the path, and who asks in the token; a body could only be a misunderstanding.
fn refuse_body(request: &Request) -> Result<(), Problem> {
    match request.body().trim_ascii() {
        b"" | b"{}" => Ok(()),
        _ => Err(Problem::bad_request("This call takes no body.")),
    }
}
