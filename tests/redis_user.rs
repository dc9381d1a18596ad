//! The user of Redis that `template.yaml` makes may do what the functions do, and nothing else.

use serde_json::json;
use shared::reservations::ActivityKeys;
use tests::{Apart, Template, World, call, redis_at};
use url::Url;

const USER: &str = "onrush";
const PASSWORD: &str = "0123456789abcdef";

/// A Redis of its own with that user, and functions that are this user.
async fn signed_in() -> (World, Apart) {
    let (mut world, apart) = World::apart_on_one_server(&[("REDIS_WAIT_REPLICAS", "0")]).await;
    let mut set_user = redis::cmd("ACL");
    set_user.arg(&["SETUSER", USER, "reset", &format!(">{PASSWORD}")]).arg(Template::with(&[]).redis_permissions());
    set_user.exec_async(&mut world.redis.clone()).await.unwrap();
    let mut url = Url::parse(&world.settings["REDIS_URL"]).unwrap();
    url.set_username(USER).unwrap();
    url.set_password(Some(PASSWORD)).unwrap();
    world.settings.insert("REDIS_URL".to_owned(), url.into());
    (world, apart)
}

#[tokio::test]
async fn the_functions_do_all_their_work_as_the_user_of_the_template() {
    let (world, apart) = signed_in().await;
    let id = world.open_activity(3).await;
    let signup = world.signup();
    for user in ["ann", "bob", "cid"] {
        assert_eq!(call(&signup, "POST", id, user).await.status, 202, "{user}");
    }
    assert_eq!(world.pump().await.unwrap().settled, 3);
    assert_eq!(call(&signup, "DELETE", id, "bob").await.status, 202);
    assert_eq!(call(&signup, "GET", id, "ann").await.body["status"], "confirmed");
    let page = world.activities_call("GET", &format!("/activities/{id}"), None, "").await;
    assert_eq!(page.body["taken"], 2);

    // All of it is lost, and comes back.
    let keys = ActivityKeys::of(id);
    let lost = redis::cmd("DEL").arg(&keys.activity).arg(&keys.signups).arg(&keys.outbox).to_owned();
    lost.exec_async(&mut world.redis.clone()).await.unwrap();
    let report = world.reconciled_while_pumping().await;
    assert_eq!(report["rebuild"]["rebuilt"], json!([id.to_string()]), "{report}");
    let report = world.reconciled(json!({"activityId": id.to_string()})).await;
    let steps = report.as_object().unwrap();
    assert!(steps.values().all(|step| step.get("error").is_none()), "{report}");
    apart.stop().await;
}

#[tokio::test]
async fn the_user_of_the_template_reads_no_other_key_and_destroys_nothing() {
    let (world, apart) = signed_in().await;
    let mut redis = redis_at(&world.settings["REDIS_URL"]).await;
    for forbidden in [
        "GET session:1",
        "SET other 1",
        "FLUSHALL",
        "SCRIPT FLUSH",
        "FUNCTION FLUSH",
        "KEYS *",
        "CONFIG GET *",
        "ACL LIST",
        "SHUTDOWN",
    ] {
        let mut words = forbidden.split(' ');
        let refused = redis::cmd(words.next().unwrap()).arg(words.collect::<Vec<_>>()).exec_async(&mut redis).await;
        let error = refused.expect_err(forbidden).to_string();
        assert!(error.to_lowercase().contains("permission"), "{forbidden}: {error}");
    }
    // What a cluster is asked besides; one server does not answer it, but tells whether it would be let through.
    for asked in ["CLUSTER SLOTS", "READONLY", "WAIT 1 100", "TIME", "PING"] {
        let mut dry_run = redis::cmd("ACL");
        dry_run.arg("DRYRUN").arg(USER).arg(asked.split(' ').collect::<Vec<_>>());
        let let_through: String = dry_run.query_async(&mut world.redis.clone()).await.unwrap();
        assert_eq!(let_through, "OK", "{asked}");
    }
    apart.stop().await;
}
