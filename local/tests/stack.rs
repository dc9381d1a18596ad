//! The whole stack as `local up` runs it: servers, functions and trigger.
#![allow(clippy::unwrap_used)] // the lint's own exception for tests stops at functions without `#[test]`

use std::time::{Duration, Instant};

use local::functions::Profile;
use local::servers::RunDir;
use local::up::{Options, Stack};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

/// Cargo may have to build the functions first.
const PATIENCE: Duration = Duration::from_secs(30);

#[tokio::test]
async fn a_sign_up_reaches_its_row_and_a_killed_function_is_replaced() {
    let dir = RunDir::create("test").unwrap();
    // Alice has one queue, bob the other.
    let options = Options { queues: 2, ..Options::new(Profile::Dev) };
    let mut stack = Stack::start_as(dir.path(), &options).await.unwrap();
    assert_eq!(stack.triggers.len(), 2);

    let activity = json!({"title": "Hike", "capacity": 2, "opensAt": null, "closesAt": null, "state": "open"});
    let (status, _) = ask(&stack, Method::PUT, "/activities/42", "olga", Some(&activity)).await;
    assert_eq!(status, StatusCode::CREATED);
    let (status, receipt) = ask(&stack, Method::POST, "/activities/42/signups", "alice", None).await;
    assert_eq!((status, &receipt["status"]), (StatusCode::ACCEPTED, &json!("queued")));
    confirmed(&stack, "alice").await;

    other_methods_and_paths_get_a_problem_document(&stack).await;
    an_error_of_a_function_is_told(&stack).await;

    stack.functions.environment("signup").unwrap().kill().await.unwrap();
    assert_eq!(stack.functions.replace_ended().unwrap(), ["signup"]);
    let (status, _) = ask(&stack, Method::POST, "/activities/42/signups", "bob", None).await;
    assert_eq!(status, StatusCode::ACCEPTED);
    confirmed(&stack, "bob").await;
    for trigger in &stack.triggers {
        assert_eq!(trigger.progress().borrow().messages, 1);
    }

    stack.stop().await.unwrap();
    dir.finish(true).unwrap();
}

async fn other_methods_and_paths_get_a_problem_document(stack: &Stack) {
    for (method, path, expected) in [
        (Method::PATCH, "/activities/42", StatusCode::METHOD_NOT_ALLOWED),
        (Method::DELETE, "/activities/42/signups", StatusCode::METHOD_NOT_ALLOWED),
        (Method::PUT, "/activities/42/signups/me", StatusCode::METHOD_NOT_ALLOWED),
        (Method::POST, "/activities", StatusCode::METHOD_NOT_ALLOWED),
        (Method::GET, "/", StatusCode::NOT_FOUND),
        (Method::GET, "/no/such/path", StatusCode::NOT_FOUND),
    ] {
        let (status, problem) = ask(stack, method.clone(), path, "alice", None).await;
        assert_eq!(status, expected, "{method} {path}: {problem}");
        assert!(problem["code"].is_string(), "{method} {path}: {problem}");
    }
}

async fn an_error_of_a_function_is_told(stack: &Stack) {
    let error = stack.functions.invoke("consumer", &json!({"not": "an event"})).await.unwrap_err();
    assert!(format!("{error:#}").starts_with("consumer failed: "), "{error:#}");
}

async fn confirmed(stack: &Stack, user: &str) {
    let begun = Instant::now();
    loop {
        let (status, receipt) = ask(stack, Method::GET, "/activities/42/signups/me", user, None).await;
        assert_eq!(status, StatusCode::OK, "{receipt}");
        if receipt["status"] == "confirmed" {
            return;
        }
        let problems: Vec<_> =
            stack.triggers.iter().map(|trigger| trigger.progress().borrow().problem.clone()).collect();
        assert!(begun.elapsed() < PATIENCE, "{user} is still {receipt}; the triggers say {problems:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn ask(stack: &Stack, method: Method, path: &str, user: &str, body: Option<&Value>) -> (StatusCode, Value) {
    let client = local::https::client_builder().timeout(PATIENCE).build().unwrap();
    let mut request = client.request(method, format!("{}{path}", stack.base_url())).header("x-user-id", user);
    if let Some(body) = body {
        request = request.json(body);
    }
    let response = request.send().await.unwrap();
    let status = response.status();
    (status, response.json().await.unwrap())
}
