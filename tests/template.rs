//! `template.yaml` against the code: what it sets is what the functions read, what it routes is what they serve, and what
//! it allows is what they need. Another half of the truth, the forms of AWS, is in `make lint`.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use lambda_http::{Body, Response};
use serde_json::{Value, json};
use shared::config::{Env, Topology};
use shared::metrics::{self, Metric};
use tests::{Reply, Template, event_for, request_of, text_of};

const FUNCTIONS: [&str; 5] = ["Signup", "Activities", "Consumer", "Reconcile", "Provision"];

/// What somebody brings instead of what the template makes.
const YOURS: &[(&str, &str)] = &[
    ("BrokerArn", "arn:aws:mq:eu-west-1:123456789012:broker:yours:b-1"),
    ("AmqpUrl", "amqps://yours.example:5671/onrush"),
    ("AmqpSecretArn", "arn:aws:secretsmanager:eu-west-1:123456789012:secret:amqp"),
    ("RedisUrl", "rediss://yours.example:6379"),
    ("RedisCluster", "true"),
    ("RedisWaitReplicas", "2"),
    ("MysqlUrl", "mysql://yours.example:3306/onrush?require_ssl=true"),
    ("MysqlSecretArn", "arn:aws:secretsmanager:eu-west-1:123456789012:secret:mysql"),
    ("SignupConcurrency", "none"),
    ("VpcId", "vpc-1"),
    ("SubnetIds", "subnet-1,subnet-2"),
    ("FunctionSecurityGroupId", "sg-1"),
    ("JwtIssuer", "https://yours.example/"),
    ("JwtAudience", "onrush"),
];

const DEPLOYMENTS: [&[(&str, &str)]; 4] = [
    &[],
    &[("RedisDurability", "replicas"), ("SignupConcurrency", "700"), ("SignupQueues", "8")],
    &[("RedisDurability", "synchronous"), ("BrokerDeployment", "CLUSTER_MULTI_AZ"), ("DatabaseStandby", "true")],
    YOURS,
];

/// What Lambda sets itself, and lets nobody else set.
const SET_BY_LAMBDA: [(&str, &str); 4] = [
    ("AWS_REGION", "eu-west-1"),
    ("AWS_ACCESS_KEY_ID", "key"),
    ("AWS_SECRET_ACCESS_KEY", "secret"),
    ("AWS_SESSION_TOKEN", "token"),
];

fn function(template: &Template, name: &str) -> Value {
    template.resource("AWS::Serverless::Function", name)["Properties"].clone()
}

fn variables(function: &Value) -> BTreeMap<String, String> {
    let variables = function["Environment"]["Variables"].as_object().unwrap().iter();
    variables.map(|(name, value)| (name.clone(), text_of(value))).collect()
}

fn start(function: &str, env: &Env<'_>) -> Result<(), String> {
    match function {
        "Signup" => signup::App::from_env(env).map(drop),
        "Activities" => activities::App::from_env(env).map(drop),
        "Consumer" => consumer::App::from_env(env).map(drop),
        "Reconcile" => reconcile::App::from_env(env).map(drop),
        "Provision" => provision::App::from_env(env).map(drop),
        other => panic!("no function {other}"),
    }
    .map_err(|error| error.to_string())
}

#[tokio::test]
async fn each_function_starts_with_what_the_template_sets_and_reads_all_of_it() {
    for deployment in DEPLOYMENTS {
        let template = Template::with(deployment);
        let functions = template.resources("AWS::Serverless::Function");
        assert_eq!(functions.keys().map(String::as_str).collect::<BTreeSet<_>>(), FUNCTIONS.into());
        for name in FUNCTIONS {
            let variables = variables(&function(&template, name));
            let read = RefCell::new(BTreeSet::new());
            let lookup = |asked: &str| {
                read.borrow_mut().insert(asked.to_owned());
                let by_lambda =
                    SET_BY_LAMBDA.iter().find(|(name, _)| *name == asked).map(|(_, value)| (*value).to_owned());
                variables.get(asked).cloned().or(by_lambda)
            };
            assert_eq!(start(name, &Env::new(&lookup)), Ok(()), "{name} with {deployment:?}");
            for variable in variables.keys() {
                assert!(!variable.starts_with("AWS_"), "{name}: only Lambda sets {variable}");
                assert_ne!(variable, "DEV_USER_HEADER", "{name} would believe a header");
                assert!(read.borrow().contains(variable), "{name} does not read {variable}");
            }
        }
    }
}

#[test]
fn addresses_ask_for_tls_and_hold_no_login() {
    for deployment in DEPLOYMENTS {
        let template = Template::with(deployment);
        for name in FUNCTIONS {
            for (variable, url) in variables(&function(&template, name)) {
                let is_safe = match variable.as_str() {
                    "REDIS_URL" => url.starts_with("rediss://"),
                    "AMQP_URL" => url.starts_with("amqps://"),
                    "MYSQL_URL" => url.starts_with("mysql://") && url.ends_with("?require_ssl=true"),
                    _ => true,
                };
                assert!(is_safe && !url.contains('@'), "{name}: {variable}={url}");
            }
        }
    }
}

#[test]
fn redis_is_used_as_its_durability_wants() {
    for (durability, cluster, wait) in
        [("serverless", "true", "0"), ("replicas", "false", "1"), ("synchronous", "true", "0")]
    {
        let template = Template::with(&[("RedisDurability", durability)]);
        let caches = ["AWS::ElastiCache::ServerlessCache", "AWS::ElastiCache::ReplicationGroup"];
        let made: usize = caches.iter().map(|kind| template.resources(kind).len()).sum();
        assert_eq!(made, 1, "{durability}");
        for name in ["Signup", "Activities", "Consumer", "Reconcile"] {
            let variables = variables(&function(&template, name));
            assert_eq!(variables["REDIS_CLUSTER"], cluster, "{name}, {durability}");
            let grants = ["Signup", "Activities"].contains(&name);
            assert_eq!(variables.get("REDIS_WAIT_REPLICAS").map(String::as_str), grants.then_some(wait), "{name}");
        }
    }
}

#[test]
fn each_queue_has_one_event_source_that_waits_for_provisioning() {
    for queues in 1..=8_usize {
        let template = Template::with(&[("SignupQueues", &queues.to_string())]);
        let sources = template.resources("AWS::Lambda::EventSourceMapping");
        let mut listened: Vec<_> = sources.values().map(|source| text_of(&source["Properties"]["Queues"][0])).collect();
        listened.sort_unstable();
        let variables = variables(&function(&template, "Consumer"));
        let topology = Topology::from_env(&Env::new(&|name| variables.get(name).cloned())).unwrap();
        assert_eq!(listened, topology.queue_names());
        for (name, source) in &sources {
            assert_eq!(source["DependsOn"], "Provisioned", "{name}");
            assert_eq!(source["Properties"]["BatchSize"], 10_000, "{name}");
        }
    }
}

#[test]
fn queues_that_are_given_up_have_their_event_sources_until_they_are_drained() {
    for (queues, drained, listened) in [("2", "0", 2), ("2", "1", 2), ("2", "4", 4), ("1", "8", 8), ("8", "2", 8)] {
        let template = Template::with(&[("SignupQueues", queues), ("DrainedQueues", drained)]);
        let sources = template.resources("AWS::Lambda::EventSourceMapping");
        let expected: BTreeSet<_> = (0..listened).map(|queue| format!("SignupQueue{queue}")).collect();
        assert_eq!(sources.keys().cloned().collect::<BTreeSet<_>>(), expected, "{queues}, {drained}");
        assert_eq!(variables(&function(&template, "Signup"))["SIGNUP_QUEUES"], queues);
    }
}

#[test]
fn the_broker_bears_the_sign_ups_of_two_generations_and_everybody_else_without_an_alarm() {
    // Eight pollers and their consumers, and four runs of reconcile.
    const OTHERS: u32 = 20;
    let number = |value: &Value| -> u32 { text_of(value).parse().unwrap() };
    for (size, kind) in ["mq.m7g.medium", "mq.m7g.large", "mq.m7g.xlarge"]
        .into_iter()
        .flat_map(|size| ["SINGLE_INSTANCE", "CLUSTER_MULTI_AZ"].map(|kind| (size, kind)))
    {
        let template = Template::with(&[("BrokerInstanceType", size), ("BrokerDeployment", kind)]);
        let alarm = template.resource("AWS::CloudWatch::Alarm", "BrokerConnectionsAlarm")["Properties"].clone();
        let share = text_of(&alarm["Metrics"][0]["Expression"]);
        let limits = share.strip_prefix("100 * used / (").and_then(|rest| rest.strip_suffix(')')).unwrap();
        let (nodes, of_each) = limits.split_once(" * ").unwrap();
        assert_eq!(nodes, if kind == "CLUSTER_MULTI_AZ" { "3" } else { "1" });
        let limit = nodes.parse::<u32>().unwrap() * of_each.parse::<u32>().unwrap() * number(&alarm["Threshold"]) / 100;
        let signups = number(&function(&template, "Signup")["ReservedConcurrentExecutions"]);
        assert!(2 * signups + OTHERS <= limit, "{size}, {kind}: 2 × {signups} of {limit}");
    }
}

/// A route, and who may use it: anybody, or who has a token with one of these scopes.
#[derive(Debug)]
struct Route {
    function: String,
    is_public: bool,
    scopes: Vec<String>,
}

/// By method and path.
fn routes(template: &Template) -> BTreeMap<(String, String), Route> {
    let mut routes = BTreeMap::new();
    for (function, resource) in template.resources("AWS::Serverless::Function") {
        let Some(events) = resource["Properties"]["Events"].as_object() else { continue };
        for event in events.values().filter(|event| event["Type"] == "HttpApi") {
            let event = &event["Properties"];
            let scopes = event["Auth"]["AuthorizationScopes"].as_array().into_iter().flatten().map(text_of).collect();
            let is_public = event["Auth"]["Authorizer"] == "NONE";
            let route = Route { function: function.clone(), is_public, scopes };
            let replaced = routes.insert((text_of(&event["Method"]), text_of(&event["Path"])), route);
            assert!(replaced.is_none(), "two routes are the same: {event}");
        }
    }
    routes
}

/// Functions with servers that are nowhere: they tell what they serve all the same.
struct Nowhere {
    signup: signup::App,
    activities: activities::App,
}

impl Nowhere {
    fn new() -> Self {
        let port = local::servers::free_port().unwrap();
        let lookup = |name: &str| match name {
            "REDIS_URL" => Some(format!("redis://127.0.0.1:{port}")),
            "AMQP_URL" => Some(format!("amqp://127.0.0.1:{port}")),
            "MYSQL_URL" => Some(format!("mysql://127.0.0.1:{port}/onrush")),
            "REDIS_TIMEOUT_MS" | "PUBLISH_TIMEOUT_MS" => Some("50".to_owned()),
            _ => None,
        };
        let env = Env::new(&lookup);
        Self { signup: signup::App::from_env(&env).unwrap(), activities: activities::App::from_env(&env).unwrap() }
    }

    /// What a function says to somebody with these scopes, or without a token.
    async fn ask(&self, function: &str, method: &str, path: &str, scopes: Option<&str>) -> Reply {
        let mut event = event_for(method, &path.replace("{activityId}", "42"), scopes.map(|_| "alice"), "");
        if let Some(scopes) = scopes {
            event["requestContext"]["authorizer"]["jwt"]["claims"]["scope"] = json!(scopes);
        }
        let response: Response<Body> = match function {
            "Signup" => signup::handle(&self.signup, request_of(&event)).await,
            "Activities" => activities::handle(&self.activities, request_of(&event)).await,
            other => panic!("{other} has no HTTP API"),
        };
        Reply::of(response)
    }
}

/// `[workspace.metadata.lambda.watch.router]` of Cargo.toml: the function of each path.
fn router() -> BTreeMap<String, String> {
    let mut cargo = std::process::Command::new(env!("CARGO"));
    let metadata = cargo.args(["metadata", "--no-deps", "--offline", "--format-version", "1"]).output().unwrap();
    let metadata: Value = serde_json::from_slice(&metadata.stdout).unwrap();
    let router = metadata["metadata"]["lambda"]["watch"]["router"].as_object().unwrap().iter();
    // What API Gateway refuses itself.
    let router = router.filter(|(path, _)| *path != "/" && !path.contains("{*"));
    router.map(|(path, function)| (path.clone(), text_of(function))).collect()
}

#[tokio::test]
async fn the_routes_are_those_that_the_functions_serve() {
    let template = Template::with(&[]);
    let (routes, router, nowhere) = (routes(&template), router(), Nowhere::new());
    let paths: BTreeSet<_> = routes.keys().map(|(_, path)| path).collect();
    assert_eq!(paths, router.keys().collect(), "template.yaml and the router of Cargo.toml");
    for path in paths {
        for method in ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"] {
            let function = if router[path] == "signup" { "Signup" } else { "Activities" };
            let served = ![404, 405].contains(&nowhere.ask(function, method, path, None).await.status);
            let route = routes.get(&(method.to_owned(), path.clone()));
            assert_eq!(route.map(|route| route.function.as_str()), served.then_some(function), "{method} {path}");
        }
    }
}

#[tokio::test]
async fn the_gateway_asks_for_tokens_and_scopes_where_the_functions_do() {
    let template = Template::with(&[]);
    let (routes, nowhere) = (routes(&template), Nowhere::new());
    for ((method, path), Route { function, is_public, scopes }) in &routes {
        let status = async |scopes: Option<&str>| nowhere.ask(function, method, path, scopes).await.status;
        assert_eq!(status(None).await != 401, *is_public, "{method} {path} without a token");
        assert_eq!(scopes.is_empty(), *is_public, "{method} {path}: an ID token, which has no scopes, would do");
        let is_for_organisers = scopes.iter().any(|scope| scope.contains("activities."));
        assert_eq!(status(Some("openid")).await == 403, is_for_organisers, "{method} {path} without that scope");
        for scope in scopes {
            assert_ne!(status(Some(scope)).await, 403, "{method} {path} with {scope}");
        }
    }
    let api = template.resource("AWS::Serverless::HttpApi", "Api");
    let default = text_of(&api["Properties"]["Auth"]["DefaultAuthorizer"]);
    assert!(api["Properties"]["Auth"]["Authorizers"][&default]["JwtConfiguration"]["issuer"].is_string(), "{api}");
}

#[test]
fn people_who_sign_in_by_the_app_get_no_scope_of_an_organiser() {
    let template = Template::with(&[]);
    let clients = template.resources("AWS::Cognito::UserPoolClient");
    for (name, client) in clients {
        let client = &client["Properties"];
        let grants = |scope: &Value| text_of(scope).contains("activities.");
        let may_organise = client["AllowedOAuthScopes"].as_array().unwrap().iter().any(grants);
        let is_program =
            client["AllowedOAuthFlows"] == json!(["client_credentials"]) && client["GenerateSecret"] == true;
        assert_eq!(may_organise, is_program, "{name}");
    }
}

/// All that a function may do, and on what: `*` stands for anything. Nothing else is allowed to any of them.
fn allowed(function: &str) -> BTreeSet<(String, bool)> {
    const ANYWHERE: [&str; 8] = [
        "ec2:AssignPrivateIpAddresses",
        "ec2:CreateNetworkInterface",
        "ec2:DeleteNetworkInterface",
        "ec2:DescribeNetworkInterfaces",
        "ec2:DescribeSubnets",
        "ec2:UnassignPrivateIpAddresses",
        "xray:PutTelemetryRecords",
        "xray:PutTraceSegments",
    ];
    const OWN: [&str; 3] = ["logs:CreateLogStream", "logs:PutLogEvents", "secretsmanager:GetSecretValue"];
    let (own, anywhere): (&[&str], &[&str]) = match function {
        "Consumer" => (&["mq:DescribeBroker"], &["ec2:DescribeSecurityGroups", "ec2:DescribeVpcs"]),
        _ => (&[], &[]),
    };
    let own = OWN.iter().chain(own).map(|action| ((*action).to_owned(), false));
    own.chain(ANYWHERE.iter().chain(anywhere).map(|action| ((*action).to_owned(), true))).collect()
}

fn listed(value: &Value) -> Vec<String> {
    match value {
        Value::Array(items) => items.iter().map(text_of).collect(),
        one => vec![text_of(one)],
    }
}

/// The statements of a function's role, also those of the policies that it shares.
fn statements(template: &Template, function: &Value) -> Vec<Value> {
    let name_in = |reference: &Value| text_of(reference).trim_matches(['<', '>']).trim_end_matches(".Arn").to_owned();
    let role = template.resource("AWS::IAM::Role", &name_in(&function["Role"]))["Properties"].clone();
    let shared = role["ManagedPolicyArns"].as_array().unwrap().iter().map(|policy| {
        template.resource("AWS::IAM::ManagedPolicy", &name_in(policy))["Properties"]["PolicyDocument"].clone()
    });
    let own = role["Policies"].as_array().unwrap().iter().map(|policy| policy["PolicyDocument"].clone());
    shared.chain(own).flat_map(|document| document["Statement"].as_array().unwrap().clone()).collect()
}

#[test]
fn each_function_may_do_what_it_needs_and_nothing_else() {
    for deployment in DEPLOYMENTS {
        let template = Template::with(deployment);
        for name in FUNCTIONS {
            let function = function(&template, name);
            assert!(function["Policies"].is_null(), "{name} has a role of its own, to which SAM adds no policies");
            let mut actions = BTreeSet::new();
            for statement in statements(&template, &function) {
                if statement["Effect"] == "Deny" {
                    continue;
                }
                assert!(statement["NotAction"].is_null() && statement["NotResource"].is_null(), "{name}: {statement}");
                let resources = listed(&statement["Resource"]);
                for action in listed(&statement["Action"]) {
                    if action == "secretsmanager:GetSecretValue" {
                        let variables = variables(&function);
                        let arns =
                            variables.iter().filter(|(name, arn)| name.ends_with("_SECRET_ARN") && !arn.is_empty());
                        let arns: BTreeSet<_> = arns.map(|(_, arn)| arn.clone()).collect();
                        assert_eq!(resources.iter().cloned().collect::<BTreeSet<_>>(), arns, "the logins of {name}");
                    }
                    actions.insert((action, resources.iter().any(|resource| resource.contains('*'))));
                }
            }
            assert_eq!(actions, allowed(name), "{name} with {deployment:?}");
        }
        let policies: usize =
            ["AWS::IAM::Policy", "AWS::Lambda::Url"].iter().map(|kind| template.resources(kind).len()).sum();
        assert_eq!(policies, 0, "what is allowed stands in the roles");
    }
}

#[test]
fn the_code_of_no_function_makes_network_interfaces_though_lambda_may() {
    for deployment in DEPLOYMENTS {
        let template = Template::with(deployment);
        let names: BTreeSet<_> =
            FUNCTIONS.iter().map(|name| text_of(&function(&template, name)["FunctionName"])).collect();
        for name in FUNCTIONS {
            let statements = statements(&template, &function(&template, name));
            let denied: Vec<_> = statements.iter().filter(|statement| statement["Effect"] == "Deny").collect();
            let [denied] = denied[..] else { panic!("{name}: {denied:?}") };
            assert_eq!((&denied["Action"], &denied["Resource"]), (&json!("ec2:*"), &json!("*")));
            let condition = denied["Condition"].as_object().unwrap();
            assert_eq!(condition.keys().collect::<Vec<_>>(), ["ArnEquals"]);
            let code = listed(&condition["ArnEquals"]["lambda:SourceFunctionArn"]);
            let code: BTreeSet<_> = code.iter().map(|arn| arn.rsplit(':').next().unwrap().to_owned()).collect();
            assert_eq!(code, names, "those whose code it is");
        }
    }
}

#[test]
fn what_was_not_measured_is_no_all_clear() {
    for (name, alarm) in Template::with(&[]).resources("AWS::CloudWatch::Alarm") {
        let alarm = &alarm["Properties"];
        // Each run tells how many of its steps failed.
        if alarm["Namespace"] == metrics::NAMESPACE && alarm["MetricName"] != Metric::FailedSteps.name() {
            assert_eq!(alarm["TreatMissingData"], "ignore", "{name}");
        }
    }
}

#[test]
fn alarms_and_the_dashboard_know_every_metric_that_is_measured_and_no_other() {
    let template = Template::with(&[]);
    let measured: BTreeSet<_> = Metric::ALL.map(|metric| metric.name().to_owned()).into();
    let of_reconcile = json!([{"Name": metrics::DIMENSION, "Value": "<Reconcile>"}]);
    let alarms = template.resources("AWS::CloudWatch::Alarm").into_values().map(|alarm| alarm["Properties"].clone());
    let alarms: Vec<_> = alarms.filter(|alarm| alarm["Namespace"] == metrics::NAMESPACE).collect();
    assert_eq!(alarms.iter().map(|alarm| text_of(&alarm["MetricName"])).collect::<BTreeSet<_>>(), measured);
    for alarm in alarms {
        assert_eq!(alarm["Dimensions"], of_reconcile, "{alarm}");
    }
    let dashboard = template.resource("AWS::CloudWatch::Dashboard", "Dashboard");
    let dashboard: Value = serde_json::from_str(dashboard["Properties"]["DashboardBody"].as_str().unwrap()).unwrap();
    let widgets = dashboard["widgets"].as_array().unwrap().iter();
    let shown = widgets.flat_map(|widget| widget["properties"]["metrics"].as_array().unwrap());
    let own: Vec<_> = shown.filter(|metric| metric[0] == metrics::NAMESPACE).collect();
    assert_eq!(own.iter().map(|metric| text_of(&metric[1])).collect::<BTreeSet<_>>(), measured);
    for metric in own {
        assert_eq!((&metric[2], &metric[3]), (&json!(metrics::DIMENSION), &json!("<Reconcile>")), "{metric}");
    }
}
