//! Compares activities person by person, where the counts leave a doubt.

use shared::comparison::{self, Comparison, ComparisonError, Mode};
use shared::domain::ActivityId;
use tokio::time::Instant;

use crate::aside::Aside;
use crate::report::{Compared, StepError};
use crate::survey::Survey;
use crate::{App, Run};

const STEP: &str = "compare";

/// How often one activity is compared in a run: once to mend, once more to see that it is mended.
const PASSES: usize = 2;

/// Compares the doubtful ones, as far as the time allows.
pub(crate) async fn compare(app: &App, run: Run, survey: &Survey, aside: &mut Aside) -> Result<Compared, StepError> {
    let mut report = Compared::default();
    for id in &survey.doubtful {
        if Instant::now() >= run.deadline {
            report.skipped += 1;
            continue;
        }
        let compared = match one(app, run, *id).await {
            Err(StepError::Comparison(ComparisonError::OutOfTime(_))) => Ok(None),
            compared => compared,
        };
        match aside.unless_damaged(STEP, *id, compared)? {
            Some(Some(passes)) => {
                report.walked += 1;
                if passes.last().is_some_and(|last| last.is_clean() && !last.busy) {
                    report.at_rest.insert(*id);
                }
                report.found.extend(passes.into_iter().filter(|found| !found.is_clean()));
            }
            Some(None) => report.skipped += 1,
            None => {}
        }
    }
    Ok(report)
}

/// Compares one activity, and again where something was mended. None where another run is at it.
async fn one(app: &App, run: Run, id: ActivityId) -> Result<Option<Vec<Comparison>>, StepError> {
    let Some(mut comparing) = app.store.lock_comparison(id).await? else { return Ok(None) };
    let mut passes = Vec::new();
    while passes.len() < PASSES {
        let found = comparison::compare(&app.store, &app.reservations, id, run.mode, run.deadline).await?;
        let is_settled = found.mended == 0;
        if is_settled && run.mode == Mode::Mend {
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
