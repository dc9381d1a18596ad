//! Compares activities person by person, where the counts leave a doubt.

use shared::comparison::{self, Comparison, ComparisonError, Mode};
use shared::domain::ActivityId;
use tokio::time::Instant;

use crate::report::{Compared, StepError};
use crate::survey::Survey;
use crate::{App, Run};

/// How often one activity is compared in a run: once to mend, once more to see that it is mended.
const PASSES: usize = 2;

/// Compares the doubtful ones, as far as the time allows.
pub(crate) async fn compare(app: &App, run: Run, survey: &Survey) -> Result<Compared, StepError> {
    let mut report = Compared::default();
    for id in &survey.doubtful {
        if Instant::now() >= run.deadline {
            report.skipped += 1;
            continue;
        }
        match one(app, run, *id).await {
            Ok(Some(passes)) => {
                report.walked += 1;
                report.found.extend(passes.into_iter().filter(|found| !found.is_clean()));
            }
            Ok(None) | Err(StepError::Comparison(ComparisonError::OutOfTime(_))) => report.skipped += 1,
            Err(error) => return Err(error),
        }
    }
    Ok(report)
}

/// Compares one activity, and again where something was mended. None where another run is at it.
pub(crate) async fn one(app: &App, run: Run, id: ActivityId) -> Result<Option<Vec<Comparison>>, StepError> {
    let Some(mut comparing) = app.store.lock_comparison(id).await? else { return Ok(None) };
    let mut passes = Vec::new();
    while passes.len() < PASSES {
        let found = comparison::compare(&app.store, &app.reservations, id, run.mode, run.deadline).await?;
        let is_settled = found.mended == 0;
        if is_settled && found.is_clean() && run.mode == Mode::Mend {
            comparing.mark_compared().await?;
        }
        passes.push(found);
        if is_settled {
            break;
        }
    }
    comparing.release().await?;
    Ok(Some(passes))
}
