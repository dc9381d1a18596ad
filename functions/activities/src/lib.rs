//! The `activities` function: creates, changes, shows and lists activities.
//!
//! An activity lives in MySQL, the record, and in Redis, where places are granted. A change is made in both, in the
//! order that cannot oversell if it stops half-way: a higher capacity goes to MySQL first, a lower one to Redis first.

mod change;

use lambda_http::{Body, Request, RequestExt, Response};
use serde::Serialize;
use shared::config::{CallerConfig, Env, MysqlConfig, RedisConfig};
use shared::domain::{Activity, ActivityId, Occupancy};
use shared::http::{Caller, Problem, activity_id, json, path_segments};
use shared::reservations::{Reservations, ReservationsError};
use shared::store::{Store, StoredActivity};

use change::{Changed, change};

/// The scope of an access token that may create and change activities.
pub const WRITE_SCOPE: &str = "activities.write";

/// The scope of an access token that may list activities.
pub const READ_SCOPE: &str = "activities.read";

/// The longest body that a PUT may have.
const MAX_BODY_BYTES: usize = 8 * 1024;

const DEFAULT_PAGE: u32 = 50;
const LARGEST_PAGE: u32 = 100;

/// What one execution environment keeps between requests.
#[derive(Clone)]
pub struct App {
    reservations: Reservations,
    store: Store,
    caller: CallerConfig,
}

impl App {
    /// Reads the settings and prepares the clients. Needs a Tokio runtime.
    pub fn from_env(env: &Env<'_>) -> Result<Self, lambda_http::Error> {
        Ok(Self {
            reservations: Reservations::new(&RedisConfig::from_env(env)?),
            store: Store::new(&MysqlConfig::from_env(env)?),
            caller: CallerConfig::from_env(env)?,
        })
    }

    /// Opens the connections, all at once. A part that is down does not keep the function from starting.
    pub async fn warm_up(&self) {
        let (redis, mysql) = tokio::join!(self.reservations.warm_up(), self.store.warm_up());
        if let Err(error) = redis {
            tracing::warn!(%error, "starting without redis");
        }
        if let Err(error) = mysql {
            tracing::warn!(%error, "starting without mysql");
        }
    }
}

/// A page of activities. `next` is the `after` of the next page, or null on the last one.
#[derive(Debug, Serialize)]
struct Page {
    activities: Vec<Occupancy>,
    next: Option<ActivityId>,
}

/// Answers one request.
pub async fn handle(app: &App, request: Request) -> Response<Body> {
    route(app, &request).await.unwrap_or_else(Problem::into_response)
}

async fn route(app: &App, request: &Request) -> Result<Response<Body>, Problem> {
    match (request.method().as_str(), path_segments(request).as_slice()) {
        ("GET", ["activities", id]) => show(app, activity_id(id)?).await,
        ("PUT", ["activities", id]) => put(app, activity_id(id)?, request).await,
        ("GET", ["activities"]) => list(app, request).await,
        (_, ["activities", _]) => Err(Problem::method_not_allowed("GET, PUT")),
        (_, ["activities"]) => Err(Problem::method_not_allowed("GET")),
        (_, ["activities", _, "signups"]) => Err(Problem::method_not_allowed("POST")),
        _ => Err(Problem::route_not_found()),
    }
}

/// Redis knows the places; MySQL stands in where Redis is down or lost the activity, so that the page of a sale stays
/// up with either of them.
async fn show(app: &App, id: ActivityId) -> Result<Response<Body>, Problem> {
    let occupancy = match app.reservations.activity(id).await {
        Ok(Some(occupancy)) => occupancy,
        Ok(None) => return Err(Problem::activity_not_found(id)),
        Err(error @ ReservationsError::Malformed { .. }) => return Err(error.into()),
        Err(error) => {
            tracing::warn!(%error, "the record answers instead of redis");
            match app.store.activity(id).await? {
                Some(stored) => occupancy_in_record(stored),
                None => return Err(Problem::activity_not_found(id)),
            }
        }
    };
    let mut response = json(200, &occupancy);
    let max_age = lambda_http::http::HeaderValue::from_static("max-age=1");
    response.headers_mut().insert(lambda_http::http::header::CACHE_CONTROL, max_age);
    Ok(response)
}

async fn put(app: &App, id: ActivityId, request: &Request) -> Result<Response<Body>, Problem> {
    Caller::of(request, &app.caller)?.require_scope(WRITE_SCOPE)?;
    let activity = parse_activity(request.body())?;
    let Changed { created, taken } = change(app, id, &activity).await?;
    Ok(json(if created { 201 } else { 200 }, &Occupancy::new(id, activity, taken)))
}

async fn list(app: &App, request: &Request) -> Result<Response<Body>, Problem> {
    Caller::of(request, &app.caller)?.require_scope(READ_SCOPE)?;
    let query = request.query_string_parameters();
    let after = query.first("after").map(activity_id).transpose()?;
    let limit = query.first("limit").map_or(Ok(DEFAULT_PAGE), parse_limit)?;
    let mut stored = app.store.activities(after, limit + 1).await?;
    let has_more = stored.len() > limit as usize;
    stored.truncate(limit as usize);
    let next = stored.last().filter(|_| has_more).map(|last| last.id);
    let activities = with_live_counts(app, stored).await;
    Ok(json(200, &Page { activities, next }))
}

/// The counts of Redis where it has them, those of the record elsewhere.
async fn with_live_counts(app: &App, stored: Vec<StoredActivity>) -> Vec<Occupancy> {
    let ids: Vec<_> = stored.iter().map(|stored| stored.id).collect();
    let live = app.reservations.activities(&ids).await.unwrap_or_else(|error| {
        tracing::warn!(%error, "the record answers instead of redis");
        vec![None; ids.len()]
    });
    stored.into_iter().zip(live).map(|(stored, live)| live.unwrap_or_else(|| occupancy_in_record(stored))).collect()
}

fn occupancy_in_record(stored: StoredActivity) -> Occupancy {
    Occupancy::new(stored.id, stored.activity, stored.active.into())
}

fn parse_activity(body: &[u8]) -> Result<Activity, Problem> {
    if body.len() > MAX_BODY_BYTES {
        return Err(Problem::too_large(MAX_BODY_BYTES));
    }
    // A struct may also be read from a list of its fields; the API takes objects only.
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err(Problem::bad_request("The body is no JSON object."));
    }
    let activity: Activity = serde_json::from_slice(body)
        .map_err(|error| Problem::bad_request(format!("The body is malformed: {error}.")))?;
    activity.validate().map_err(|error| Problem::bad_request(format!("{error}.")))
}

fn parse_limit(text: &str) -> Result<u32, Problem> {
    text.parse()
        .ok()
        .filter(|limit| (1..=LARGEST_PAGE).contains(limit))
        .ok_or_else(|| Problem::bad_request(format!("limit is a whole number from 1 to {LARGEST_PAGE}.")))
}
