//! Wires a cold start of the `signup` function.

use std::convert::Infallible;
use std::process::ExitCode;

use lambda_http::{Error, Request, run_concurrent, service_fn};
use shared::config::Env;
use shared::telemetry;
use signup::App;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    telemetry::init();
    telemetry::exit(start().await)
}

async fn start() -> Result<(), Error> {
    let app = App::from_env(&Env::process())?;
    app.warm_up().await;
    run_concurrent(service_fn(move |request: Request| {
        let app = app.clone();
        async move { Ok::<_, Infallible>(signup::handle(&app, request).await) }
    }))
    .await
}
