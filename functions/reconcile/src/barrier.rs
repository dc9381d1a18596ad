//! Finds out whether the queues have run out since an activity was found missing.
//!
//! Counting messages would not tell: those in the hands of a consumer are not counted. So a barrier is sent behind all
//! that was published before, and when it comes out of the queue so has the rest, since an event source takes one batch
//! at a time and a failed batch comes again before others. With several queues it goes through each, and has passed when
//! it came out of them all.
//!
//! `SIGNUP_QUEUES` is no proof of how many there are: while the number changes, functions with the old one and with the
//! new one publish side by side. So a queue beyond it counts too, unless it holds nothing and nobody takes from it.

use std::time::Duration;

use shared::message::Barrier;
use shared::reservations::Passed;
use tokio::time::{Instant, sleep};

use crate::report::StepError;
use crate::{App, Run};

/// A request that was granted a place just before the loss may publish until its time is over, and a little more.
const MARGIN: Duration = Duration::from_millis(500);

/// How long one run waits for the barrier; the next run goes on.
const LONGEST_WAIT: Duration = Duration::from_secs(20);

const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What came out of the queues that count.
pub(crate) struct Passage {
    queues: Vec<u16>,
    passed: Passed,
}

impl Passage {
    /// Whether all has come out that was published before this barrier was sent.
    pub(crate) fn is_through(&self, barrier: Barrier) -> bool {
        self.passed.through_all(&self.queues, barrier)
    }

    /// The names of the queues from which the barrier has not come out.
    pub(crate) fn held_up_by(&self, app: &App, barrier: Barrier) -> Vec<String> {
        let held_up = self.queues.iter().filter(|queue| !self.passed.through(**queue, barrier));
        held_up.map(|queue| app.publisher.topology().queue_name(*queue)).collect()
    }
}

/// Tells what has come out so far.
pub(crate) async fn look(app: &App, run: Run) -> Result<Passage, StepError> {
    let left_over = app.publisher.left_over(run.deadline).await?;
    let beyond = left_over.iter().filter(|left_over| left_over.is_in_use()).map(|left_over| left_over.queue);
    let queues = (0..app.publisher.topology().queues).chain(beyond).collect();
    Ok(Passage { queues, passed: app.reservations.passed().await? })
}

/// Sends the barrier and waits a while for it. Tells what has come out then.
pub(crate) async fn send_and_await(app: &App, run: Run, barrier: Barrier) -> Result<Passage, StepError> {
    sleep(app.publish_timeout + MARGIN).await;
    // Not earlier: until now somebody may have published to a queue that seemed to be at rest.
    let mut passage = look(app, run).await?;
    app.publisher.publish_barrier(barrier, &passage.queues, run.deadline).await?;
    shared::fail_point!("rebuild.after-barrier");
    let give_up = run.deadline.min(Instant::now() + LONGEST_WAIT);
    loop {
        passage.passed = app.reservations.passed().await?;
        if passage.is_through(barrier) || Instant::now() >= give_up {
            return Ok(passage);
        }
        sleep(LOOK_EVERY).await;
    }
}
