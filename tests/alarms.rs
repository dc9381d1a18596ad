//! The alarms and the dashboard of `template.yaml`: they look at every node there is, and none sounds for a new stack.
//! That they ask for metrics that somebody writes is in `template.rs`.

use serde_json::Value;
use tests::{Template, text_of};

const ALARM: &str = "AWS::CloudWatch::Alarm";

/// The metrics that an alarm looks at, as the template has them.
fn watched(alarm: &Value) -> Vec<Value> {
    let alarm = &alarm["Properties"];
    match alarm["Metrics"].as_array() {
        Some(queries) => {
            queries.iter().map(|query| query["MetricStat"]["Metric"].clone()).filter(Value::is_object).collect()
        }
        None => vec![alarm.clone()],
    }
}

/// The metrics of all graphs: namespace, name, then each dimension and its value.
fn graphed(template: &Template) -> Vec<Vec<Value>> {
    let dashboard = template.resource("AWS::CloudWatch::Dashboard", "Dashboard");
    let body: Value = serde_json::from_str(&text_of(&dashboard["Properties"]["DashboardBody"])).unwrap();
    let widgets = body["widgets"].as_array().unwrap();
    let metrics = widgets.iter().flat_map(|widget| widget["properties"]["metrics"].as_array().unwrap());
    metrics.map(|metric| metric.as_array().unwrap().clone()).collect()
}

/// The nodes that the memory alarm sees, for so many primaries.
fn seen(given: &[(&str, &str)]) -> Vec<String> {
    let alarm = Template::with(given).resource(ALARM, "RedisNodeMemoryAlarm");
    assert_eq!(alarm["Properties"]["Metrics"][0]["Expression"], "MAX(METRICS())");
    watched(&alarm).iter().map(|metric| text_of(&metric["Dimensions"][0]["Value"])).collect()
}

#[test]
fn the_memory_alarm_of_redis_sees_a_node_of_every_shard_that_there_can_be() {
    assert_eq!(seen(&[("RedisDurability", "replicas")]), ["<RedisReplicatedNodes>-001"]);
    let most = Template::with(&[]).parameter("RedisShards")["MaxValue"].as_u64().unwrap();
    // CloudWatch takes no more metrics in one alarm.
    assert!(most <= 10, "{most}");
    for shards in 1..=most {
        let given = [("RedisDurability", "synchronous"), ("RedisShards", &shards.to_string())];
        let nodes: Vec<_> = (1..=shards).map(|shard| format!("<RedisSynchronousNodes>-{shard:04}-001")).collect();
        assert_eq!(seen(&given), nodes);
        let graphs = graphed(&Template::with(&given));
        let graphed = graphs.iter().filter(|metric| metric[0] == "AWS/ElastiCache");
        assert_eq!(graphed.map(|metric| text_of(&metric[3])).collect::<Vec<_>>(), nodes);
    }
}

#[test]
fn what_several_nodes_have_is_not_judged_by_their_average() {
    for given in [
        &[("RedisDurability", "synchronous"), ("DatabaseStandby", "true"), ("BrokerDeployment", "CLUSTER_MULTI_AZ")][..],
        &[],
    ] {
        let template = Template::with(given);
        for (name, alarm) in template.resources(ALARM) {
            let queries = alarm["Properties"]["Metrics"].as_array().cloned().unwrap_or_default();
            let statistics = queries.iter().map(|query| &query["MetricStat"]["Stat"]);
            let averaged =
                statistics.chain([&alarm["Properties"]["Statistic"]]).any(|statistic| *statistic == "Average");
            assert!(!averaged, "{name}");
        }
        // Amazon MQ adds up the nodes of a cluster.
        let threshold = |name| template.resource(ALARM, name)["Properties"]["Threshold"].as_u64().unwrap();
        let is_cluster = !given.is_empty();
        // One node at its limit, the others at two fifths of it; one at its limit, the others with four times that.
        let (memory, disk) = if is_cluster { ((100 + 40 + 40) / 3, 100 * 3 / (1 + 4 + 4)) } else { (80, 50) };
        assert_eq!((threshold("BrokerMemoryAlarm"), threshold("BrokerDiskAlarm")), (memory, disk));
    }
}

#[test]
fn a_new_stack_has_time_for_its_first_run_before_silence_is_an_alarm() {
    let alarm = Template::with(&[]).resource(ALARM, "ReconcileSilentAlarm")["Properties"].clone();
    assert_eq!(alarm["TreatMissingData"], "breaching", "a function that does not run writes nothing");
    let warm_up = alarm["WarmUpConfiguration"]["WarmUpPeriodDurationInMinutes"].as_u64().unwrap();
    let window_minutes = alarm["Period"].as_u64().unwrap() * alarm["EvaluationPeriods"].as_u64().unwrap() / 60;
    assert!(warm_up >= 2 * window_minutes, "{warm_up} of {window_minutes}");
}
