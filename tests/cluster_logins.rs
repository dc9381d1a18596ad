//! A Redis cluster over TLS, opened by a login that Secrets Manager keeps: what holds for one server holds for every node.

use std::ops::Range;

use local::servers::Certificates;
use shared::config::{Env, RedisConfig};
use shared::endpoint::FETCH_AGAIN_AFTER;
use shared::reservations::Reservations;
use tests::{OwnCluster, Sale, SecretsManager, Settings, World};

const USER: &str = "guarded";
const FIRST: &str = "first: 50%41 p/w@1";

/// A cluster over TLS with a user of its own, and a Secrets Manager that keeps the login.
struct Guarded {
    cluster: OwnCluster,
    secrets: SecretsManager,
    secret_id: String,
}

impl Guarded {
    async fn start() -> Self {
        let (cluster, secrets) = (OwnCluster::over_tls().await, SecretsManager::start().await);
        let guarded = Self { cluster, secrets, secret_id: SecretsManager::arn("redis") };
        guarded.rotate(FIRST).await;
        guarded
    }

    async fn rotate(&self, password: &str) {
        self.cluster.set_login(USER, password).await;
        self.secrets.keep(&self.secret_id, USER, password);
    }

    fn settings(&self) -> Settings {
        let authority = self.cluster.tls.as_ref().unwrap().authority().display().to_string();
        let mut settings = self.secrets.settings();
        settings
            .extend([("REDIS_SECRET_ARN".to_owned(), self.secret_id.clone()), ("TLS_CA_FILE".to_owned(), authority)]);
        settings
    }

    async fn world(&self) -> World {
        let settings = self.settings();
        let settings: Vec<_> = settings.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        self.cluster.world(&settings).await
    }

    /// What a client says that starts now, where these settings differ.
    async fn refusal(&self, own: [(&str, String); 1]) -> String {
        let mut settings = self.settings();
        settings.extend([("REDIS_URL".to_owned(), self.cluster.nodes.url()), ("REDIS_CLUSTER".into(), "true".into())]);
        settings.extend(own.map(|(name, value)| (name.to_owned(), value)));
        let lookup = |name: &str| settings.get(name).cloned();
        let config = RedisConfig::from_env(&Env::new(&lookup)).unwrap();
        Reservations::new(&config).warm_up().await.unwrap_err().to_string()
    }
}

#[tokio::test]
async fn a_sale_on_a_cluster_over_tls_goes_on_when_the_login_is_rotated_and_every_node_ends_its_connections() {
    goes_on_after_a_rotation_with_ended_connections_to(0..6).await;
}

#[tokio::test]
async fn a_sale_on_a_cluster_goes_on_when_the_login_is_rotated_and_one_node_ends_its_connections() {
    goes_on_after_a_rotation_with_ended_connections_to(1..2).await;
}

async fn goes_on_after_a_rotation_with_ended_connections_to(nodes: Range<usize>) {
    let guarded = Guarded::start().await;
    let world = guarded.world().await;
    let signup = world.signup();
    let mut sales = guarded.cluster.sales(&world, 30).await;
    for sale in &mut sales {
        sale.goes_on_with(signup.clone());
        sale.grant("before", 10).await;
    }
    // A login that was fetched a moment ago is not fetched again.
    tokio::time::sleep(FETCH_AGAIN_AFTER).await;
    guarded.rotate("second: %ff%2F p/w@2").await;
    for node in nodes {
        guarded.cluster.end_connections(node, USER).await;
    }
    // The same corner, looked at with the login of now.
    let settings: Vec<_> = world.settings.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let world = World::with(&settings).await;
    for sale in &mut sales {
        sale.world = &world;
        sale.grant("after", 10).await;
        sale.comes_home(20).await;
    }
    drop(sales);
    guarded.cluster.stop().await;
}

#[tokio::test]
async fn a_cluster_whose_certificate_or_login_is_wrong_is_refused_and_the_error_says_so() {
    let guarded = Guarded::start().await;
    let other = Certificates::create(&guarded.cluster.dir().join("other")).unwrap();
    let said = guarded.refusal([("TLS_CA_FILE", other.authority().display().to_string())]).await;
    assert!(said.contains("redis") && said.contains("UnknownIssuer"), "{said}");
    let wrong = SecretsManager::arn("wrong");
    guarded.secrets.keep(&wrong, USER, "wrong");
    let said = guarded.refusal([("REDIS_SECRET_ARN", wrong)]).await;
    assert!(said.contains("redis") && said.contains("authentication failed"), "{said}");
    guarded.cluster.stop().await;
}

#[tokio::test]
async fn a_function_that_began_with_a_wrong_login_sells_on_the_cluster_once_the_secret_is_right() {
    let guarded = Guarded::start().await;
    let world = guarded.world().await;
    let mut sale = Sale::open(&world, world.signup(), 10).await;
    guarded.secrets.keep(&guarded.secret_id, USER, "wrong");
    sale.goes_on_with(world.signup());
    sale.expect("POST", "ann", 503).await;
    guarded.secrets.keep(&guarded.secret_id, USER, FIRST);
    tokio::time::sleep(FETCH_AGAIN_AFTER).await;
    sale.expect("POST", "ann", 202).await;
    sale.comes_home(1).await;
    drop(sale);
    guarded.cluster.stop().await;
}
