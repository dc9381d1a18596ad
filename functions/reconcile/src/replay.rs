//! Moves parked messages back, after a fix, on an operator's word.

use shared::broker::Replayed;
use shared::comparison::Mode;

use crate::report::StepError;
use crate::{App, Run};

/// Replays up to `count` of them.
pub(crate) async fn replay(app: &App, run: Run, count: u32) -> Result<Replayed, StepError> {
    match run.mode {
        Mode::Mend => Ok(app.publisher.replay(count, run.deadline).await?),
        Mode::Look => {
            let parked_before = app.publisher.depth(run.deadline).await?.parked;
            Ok(Replayed { parked_before, ..Replayed::default() })
        }
    }
}
