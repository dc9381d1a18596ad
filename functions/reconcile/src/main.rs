//! Wires a cold start of the `reconcile` function.

use std::process::ExitCode;

use lambda_runtime::{Error, LambdaEvent, run_concurrent, service_fn};
use reconcile::App;
use shared::config::Env;
use shared::telemetry;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    telemetry::init();
    telemetry::exit(start().await)
}

async fn start() -> Result<(), Error> {
    let app = App::from_env(&Env::process())?;
    run_concurrent(service_fn(move |event: LambdaEvent<serde_json::Value>| {
        let app = app.clone();
        async move { Ok::<_, Error>(reconcile::handle(&app, event).await?) }
    }))
    .await
}
