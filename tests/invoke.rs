//! The sample events in `tests/events`, and the functions as processes under `cargo lambda watch`.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use local::functions::{Functions, Profile, Programs};
use local::servers::{RunDir, find_program, workspace_root};
use serde_json::{Value, json};
use tests::{HttpSink, Reply, World, empty_database, request_of};

fn sample_path(name: &str) -> PathBuf {
    workspace_root().join(format!("tests/events/{name}.json"))
}

fn sample(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(sample_path(name)).unwrap()).unwrap()
}

/// A corner where activity 42, of which the samples tell, is not yet.
async fn world_of_samples(redis_database: u8) -> World {
    let redis_url = tests::one_redis();
    let redis_url = format!("{}/{redis_database}", redis_url.trim_end_matches('/'));
    let world = World::unprovisioned(&[("MYSQL_URL", &empty_database().await), ("REDIS_URL", &redis_url)]).await;
    redis::cmd("FLUSHDB").query_async::<()>(&mut world.redis.clone()).await.unwrap();
    world
}

fn provisioned(world: &World) -> Value {
    json!({
        "queues": [world.topology().queue],
        "parkedQueue": world.topology().parked_queue(),
        "migrationsApplied": ["V1__create_activity", "V2__create_user_activity"]
    })
}

fn activity(taken: u64) -> Value {
    json!({
        "activityId": "42", "title": "Spring hike", "capacity": 100, "opensAt": null, "closesAt": null,
        "state": "open", "taken": taken, "remaining": 100 - taken
    })
}

fn report(written: u64, stale: u64) -> Value {
    json!({"received": 2, "written": written, "stale": stale, "surplus": 0, "parked": 0, "settled": 0})
}

/// The receipt without its time, which is now.
fn receipt(mut body: Value) -> Value {
    let at = body.as_object_mut().unwrap().remove("signedUpAt").unwrap();
    at.as_str().unwrap().parse::<shared::domain::Timestamp>().unwrap();
    body
}

fn receipt_of(user: &str, sequence: u64, status: &str) -> Value {
    json!({"activityId": "42", "userId": user, "sequence": sequence, "status": status})
}

#[tokio::test]
async fn each_sample_event_is_what_its_function_takes() {
    let world = world_of_samples(14).await;
    assert_eq!(provision::handle(&world.provision(), sample("provision")).await.unwrap(), provisioned(&world));

    let app = world.activities();
    let activities = async |name: &str| Reply::of(activities::handle(&app, request_of(&sample(name))).await);
    let created = activities("activities-put").await;
    assert_eq!((created.status, created.body), (201, activity(0)));
    let shown = activities("activities-get").await;
    assert_eq!((shown.status, shown.body), (200, activity(0)));
    let listed = activities("activities-list").await;
    assert_eq!((listed.status, listed.body), (200, json!({"activities": [activity(0)], "next": null})));

    let app = world.signup();
    let signup = async |name: &str| Reply::of(signup::handle(&app, request_of(&sample(name))).await);
    for (name, status, receipt_status) in [
        ("signup-post", 202, "queued"),
        ("signup-post", 200, "queued"),
        ("signup-get", 200, "queued"),
        ("signup-delete", 202, "cancelled"),
        ("signup-delete", 200, "cancelled"),
    ] {
        let reply = signup(name).await;
        let expected = (status, receipt_of("alice", 1, receipt_status));
        assert_eq!((reply.status, receipt(reply.body)), expected, "{name}");
    }

    let consumed = world.consume(&world.consumer(), sample("consumer")).await.unwrap();
    assert_eq!(serde_json::to_value(consumed).unwrap(), report(2, 0));

    // The consumer's sample brought two people whom Redis does not know.
    for (name, mended) in [("reconcile-by-hand", 0), ("reconcile", 2), ("reconcile-by-hand", 0)] {
        let reconciled = world.reconciled(sample(name)).await;
        assert_eq!(reconciled["survey"]["activities"], 1, "{reconciled}");
        let found = &reconciled["compare"]["found"];
        assert_eq!(found[0]["mended"].as_u64().unwrap_or(0), mended, "{reconciled}");
    }
    assert_eq!(activities("activities-get").await.body, activity(2));

    let sink = HttpSink::answering(200).await;
    let mut event = sample("provision-cloudformation");
    event["ResponseURL"] = json!(sink.url());
    let answer = provision::handle(&world.provision(), event).await.unwrap();
    assert_eq!(answer["Status"], "SUCCESS");
    assert_eq!(sink.received()[0].body, answer);
}

/// `cargo lambda invoke NAME --data-file FILE`
async fn invoke(functions: &Functions, name: &str, data_file: &Path) -> Output {
    let installed = workspace_root().join("target/tools/venv/bin/cargo-lambda");
    let program = find_program("cargo-lambda").unwrap_or(installed);
    let port = functions.base_url().rsplit_once(':').unwrap().1;
    tokio::process::Command::new(program)
        .args(["lambda", "invoke", name, "--invoke-address", "127.0.0.1", "--invoke-port", port, "--data-file"])
        .arg(data_file)
        .current_dir(workspace_root())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .unwrap()
}

/// What a function answers to a sample.
async fn answer(functions: &Functions, name: &str, sample: &str) -> Value {
    let output = invoke(functions, name, &sample_path(sample)).await;
    assert!(output.status.success(), "{sample}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The status and the body that API Gateway would send on.
async fn http_answer(functions: &Functions, name: &str, sample: &str) -> (u64, Value) {
    let answer = answer(functions, name, sample).await;
    let body = serde_json::from_str(answer["body"].as_str().unwrap()).unwrap();
    (answer["statusCode"].as_u64().unwrap(), body)
}

/// A call of the API, by this user or by nobody.
async fn call(functions: &Functions, method: &str, path: &str, user: Option<&str>, body: &str) -> (u16, Value) {
    let client = local::https::client_builder().build().unwrap();
    let mut request = client.request(method.parse().unwrap(), format!("{}{path}", functions.base_url()));
    if let Some(user) = user {
        request = request.header("x-user-id", user);
    }
    let reply = request.body(body.to_owned()).send().await.unwrap();
    let (status, text) = (reply.status().as_u16(), reply.text().await.unwrap());
    (status, serde_json::from_str(&text).unwrap_or_else(|_| panic!("{method} {path}: {status} {text:?}")))
}

#[tokio::test]
async fn the_functions_answer_the_sample_events_and_the_routes_under_cargo_lambda() {
    let world = world_of_samples(15).await;
    let run = RunDir::create("test-invoke").unwrap();
    let programs = Programs::build(Profile::Dev).await.unwrap();
    let settings: Vec<_> = world.variables().into_iter().collect();
    let functions = Functions::start(run.path(), &programs, &settings).await.unwrap();

    the_samples_are_answered(&world, &functions, run.path()).await;
    the_routes_lead_to_the_functions(&functions).await;

    functions.stop().await.unwrap();
    run.finish(true).unwrap();
}

async fn the_samples_are_answered(world: &World, functions: &Functions, dir: &Path) {
    assert_eq!(answer(functions, "provision", "provision").await, provisioned(world));
    assert_eq!(http_answer(functions, "activities", "activities-put").await, (201, activity(0)));
    assert_eq!(http_answer(functions, "activities", "activities-put").await, (200, activity(0)));

    let (status, body) = http_answer(functions, "signup", "signup-post").await;
    assert_eq!((status, receipt(body)), (202, receipt_of("alice", 1, "queued")));
    let (status, body) = http_answer(functions, "signup", "signup-get").await;
    assert_eq!((status, receipt(body)), (200, receipt_of("alice", 1, "queued")));
    assert_eq!(http_answer(functions, "activities", "activities-get").await, (200, activity(1)));
    let (status, body) = http_answer(functions, "signup", "signup-delete").await;
    assert_eq!((status, receipt(body)), (202, receipt_of("alice", 1, "cancelled")));
    let listed = http_answer(functions, "activities", "activities-list").await;
    assert_eq!(listed, (200, json!({"activities": [activity(0)], "next": null})));
    assert_eq!(world.drain_signups().await.len(), 2);

    assert_eq!(answer(functions, "consumer", "consumer").await, report(2, 0));
    assert_eq!(answer(functions, "consumer", "consumer").await, report(0, 2));
    assert_eq!(world.active("42".parse().unwrap()).await, Some(2));

    let looked = answer(functions, "reconcile", "reconcile-by-hand").await;
    assert_eq!(looked["compare"]["found"][0]["lostInRedis"]["count"], 2, "{looked}");

    let sink = HttpSink::answering(200).await;
    let mut event = sample("provision-cloudformation");
    event["ResponseURL"] = json!(sink.url());
    let file = dir.join("create.json");
    std::fs::write(&file, event.to_string()).unwrap();
    let created = invoke(functions, "provision", &file).await;
    assert!(created.status.success(), "{created:?}");
    assert_eq!(sink.received()[0].body["Status"], "SUCCESS");

    let wrong = invoke(functions, "consumer", &sample_path("provision")).await;
    let said = String::from_utf8_lossy(&wrong.stdout) + String::from_utf8_lossy(&wrong.stderr);
    assert!(!wrong.status.success() && said.contains("rmqMessagesByQueue"), "{said}");
}

async fn the_routes_lead_to_the_functions(functions: &Functions) {
    let body = r#"{"title": "Spring hike", "capacity": 100}"#;
    let ann = Some("ann");
    assert_eq!(call(functions, "PUT", "/activities/42", ann, body).await, (200, activity(0)));
    let (status, granted) = call(functions, "POST", "/activities/42/signups", ann, "").await;
    assert_eq!((status, receipt(granted)), (202, receipt_of("ann", 2, "queued")));
    let (status, shown) = call(functions, "GET", "/activities/42/signups/me", ann, "").await;
    assert_eq!((status, receipt(shown)), (200, receipt_of("ann", 2, "queued")));
    assert_eq!(call(functions, "GET", "/activities/42", None, "").await, (200, activity(1)));
    let (status, cancelled) = call(functions, "DELETE", "/activities/42/signups/me", ann, "").await;
    assert_eq!((status, receipt(cancelled)), (202, receipt_of("ann", 2, "cancelled")));
    let listed = call(functions, "GET", "/activities?limit=5", ann, "").await;
    assert_eq!(listed, (200, json!({"activities": [activity(0)], "next": null})));

    for (method, path, user, status, code) in [
        ("POST", "/activities/42/signups", None, 401, "unauthorized"),
        ("PUT", "/activities/42", None, 401, "unauthorized"),
        ("POST", "/activities/042/signups", ann, 400, "bad-request"),
        ("POST", "/activities/43/signups", ann, 404, "activity-not-found"),
        ("GET", "/activities/43", None, 404, "activity-not-found"),
        ("PATCH", "/activities/42", ann, 405, "method-not-allowed"),
        ("PUT", "/activities/42/signups", ann, 405, "method-not-allowed"),
        ("POST", "/activities/42/signups/me", ann, 405, "method-not-allowed"),
        ("DELETE", "/activities", ann, 405, "method-not-allowed"),
        ("GET", "/", None, 404, "route-not-found"),
        ("GET", "/activities/42/signups/me/more", ann, 404, "route-not-found"),
    ] {
        let (answered, problem) = call(functions, method, path, user, "").await;
        assert_eq!((answered, problem["code"].as_str()), (status, Some(code)), "{method} {path}: {problem}");
    }
}
