//! Provisioning as a CloudFormation custom resource: whatever happens, the stack is told.

use provision::{PHYSICAL_RESOURCE_ID, ProvisionError};
use serde_json::{Value, json};
use tests::{HttpSink, Proxy, World, empty_database};

fn event(request_type: &str, response_url: &str) -> Value {
    let mut event = json!({
        "RequestType": request_type,
        "ServiceToken": "arn:aws:lambda:eu-west-1:123456789012:function:provision",
        "ResponseURL": response_url,
        "StackId": "arn:aws:cloudformation:eu-west-1:123456789012:stack/onrush/5f1b4a50",
        "RequestId": "5478fc5d-b8ee-4d27-a6c4-2c0a0d2f4f4b",
        "ResourceType": "Custom::Provision",
        "LogicalResourceId": "Provisioned",
        "ResourceProperties": {"ServiceToken": "arn:aws:lambda:eu-west-1:123456789012:function:provision"}
    });
    if request_type != "Create" {
        event["PhysicalResourceId"] = json!(PHYSICAL_RESOURCE_ID);
    }
    if request_type == "Update" {
        event["OldResourceProperties"] = json!({});
    }
    event
}

fn answer(status: &str) -> Value {
    json!({
        "Status": status,
        "PhysicalResourceId": PHYSICAL_RESOURCE_ID,
        "StackId": "arn:aws:cloudformation:eu-west-1:123456789012:stack/onrush/5f1b4a50",
        "RequestId": "5478fc5d-b8ee-4d27-a6c4-2c0a0d2f4f4b",
        "LogicalResourceId": "Provisioned"
    })
}

async fn tables(world: &World) -> u64 {
    use mysql_async::prelude::Queryable;
    let sql = "SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE()";
    world.mysql.get_conn().await.unwrap().query_first(sql).await.unwrap().unwrap()
}

async fn nowhere() -> World {
    World::unprovisioned(&[("MYSQL_URL", &empty_database().await)]).await
}

#[tokio::test]
async fn create_update_and_delete_are_answered_with_success() {
    let world = nowhere().await;
    let app = world.provision();
    let sink = HttpSink::answering(200).await;
    for (n, request_type) in ["Create", "Update", "Delete"].into_iter().enumerate() {
        let returned = provision::handle(&app, event(request_type, &sink.url())).await.unwrap();
        assert_eq!(returned, answer("SUCCESS"));
        let received = sink.received();
        assert_eq!(received.len(), n + 1);
        assert_eq!(received[n].body, answer("SUCCESS"));
        assert_eq!(received[n].request_line, "PUT /arn%3Aaws%3Acloudformation/answer?Signature=s3cret HTTP/1.1");
        // The signature of the address covers an empty content type.
        let content_type = received[n].headers.iter().find(|(name, _)| name == "content-type");
        assert_eq!(content_type.map(|(_, value)| value.as_str()), Some(""));
    }
    assert_eq!(tables(&world).await, 3, "Delete must keep people's places");
    assert!(world.drain_signups().await.is_empty());
}

#[tokio::test]
async fn delete_touches_neither_the_broker_nor_mysql() {
    let world = nowhere().await;
    let sink = HttpSink::answering(200).await;
    let returned = provision::handle(&world.provision(), event("Delete", &sink.url())).await.unwrap();
    assert_eq!(returned, answer("SUCCESS"));
    assert_eq!(tables(&world).await, 0);
}

#[tokio::test]
async fn a_part_that_is_down_is_answered_with_failed_and_a_reason_without_passwords() {
    for (setting, word) in [("AMQP_URL", "broker"), ("MYSQL_URL", "mysql")] {
        let mut world = nowhere().await;
        let (proxy, url) = Proxy::before(&world.settings[setting]).await;
        proxy.cut();
        let password = url.split_once("onrush:").unwrap().1.split_once('@').unwrap().0.to_owned();
        world.settings.insert(setting.to_owned(), url);
        let sink = HttpSink::answering(200).await;
        let returned = provision::handle(&world.provision(), event("Create", &sink.url())).await.unwrap();
        let mut received = sink.received().remove(0).body;
        assert_eq!(received, returned);
        let reason = received.as_object_mut().unwrap().remove("Reason").unwrap();
        let reason = reason.as_str().unwrap();
        assert!(reason.contains(word) && !reason.contains(&password), "{reason}");
        assert_eq!(received, answer("FAILED"));
    }
}

#[tokio::test]
async fn an_answer_that_cloudformation_does_not_take_is_an_error_that_keeps_the_signature() {
    let world = World::new().await;
    let app = world.provision();
    let refusing = HttpSink::answering(403).await;
    let gone = HttpSink::answering(200).await.url();
    for url in [refusing.url(), gone, "no address?Signature=s3cret".to_owned()] {
        let error = provision::handle(&app, event("Create", &url)).await.unwrap_err();
        assert!(matches!(error, ProvisionError::Respond(_)), "{error}");
        let text = format!("{error} {error:?}");
        assert!(text.contains("cloudformation did not take the answer"), "{text}");
        assert!(!text.contains("s3cret"), "{text}");
    }
}

#[tokio::test]
async fn a_request_of_another_form_is_refused_by_name() {
    let world = World::new().await;
    let app = world.provision();
    for request in [json!({"RequestType": "Create"}), event("Destroy", "http://127.0.0.1:1/")] {
        let error = provision::handle(&app, request).await.unwrap_err();
        assert!(error.to_string().contains("no CloudFormation custom resource request"), "{error}");
    }
}
