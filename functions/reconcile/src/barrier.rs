//! Finds out whether the queue has run out since an activity was found missing.
//!
//! Counting messages would not tell: those in the hands of a consumer are not counted. So a barrier is sent behind all
//! that was published before, and when it comes out of the queue so has the rest, since an event source takes one batch
//! at a time and a failed batch comes again before others.

use std::time::Duration;

use shared::message::Barrier;
use tokio::time::{Instant, sleep};

use crate::report::StepError;
use crate::{App, Run};

/// A request that was granted a place just before the loss may publish until its time is over, and a little more.
const MARGIN: Duration = Duration::from_millis(500);

/// How long one run waits for the barrier; the next run goes on.
const LONGEST_WAIT: Duration = Duration::from_secs(20);

const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Sends the barrier and waits a while for it. Tells the latest that came out.
pub(crate) async fn send_and_await(app: &App, run: Run, barrier: Barrier) -> Result<Option<Barrier>, StepError> {
    sleep(app.publish_timeout + MARGIN).await;
    app.publisher.publish_barrier(barrier, run.deadline).await?;
    shared::fail_point!("rebuild.after-barrier");
    let give_up = run.deadline.min(Instant::now() + LONGEST_WAIT);
    loop {
        let passed = app.reservations.passed().await?;
        if passed >= Some(barrier) || Instant::now() >= give_up {
            return Ok(passed);
        }
        sleep(LOOK_EVERY).await;
    }
}
