//! Moves parked messages back, after a fix, on an operator's word.

use shared::broker::{PublishError, Replayed};
use shared::comparison::Mode;

use crate::report::StepError;
use crate::{App, Run};

/// Replays up to `count` of them.
pub(crate) async fn replay(app: &App, run: Run, count: u32) -> Result<Replayed, StepError> {
    match run.mode {
        Mode::Mend => Ok(app.publisher.replay(count, run.deadline).await?),
        Mode::Look => {
            let queue = app.publisher.topology().parked_queue();
            let depth = app.publisher.depth(run.deadline).await?;
            let parked_before = depth.parked.ok_or(PublishError::NoQueue { queue })?;
            Ok(Replayed { parked_before, ..Replayed::default() })
        }
    }
}
