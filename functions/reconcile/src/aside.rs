//! Activities whose data has another form. They wait for an operator, and must keep no other from its due.

use serde::Serialize;
use shared::comparison::ComparisonError;
use shared::domain::ActivityId;
use shared::reservations::ReservationsError;
use shared::store::StoreError;

use crate::report::StepError;

/// An activity that a step left alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Failed {
    /// The activity.
    pub activity_id: ActivityId,
    /// The step.
    pub step: &'static str,
    /// Why.
    pub error: String,
}

/// The activities that were left alone so far.
#[derive(Debug, Default)]
pub(crate) struct Aside(pub(crate) Vec<Failed>);

impl Aside {
    /// What a step got about one activity. None, and a note of it, where that activity's data has another form; any other
    /// error is a broken part, and ends the step.
    pub(crate) fn unless_damaged<T>(
        &mut self,
        step: &'static str,
        id: ActivityId,
        outcome: Result<T, impl Into<StepError>>,
    ) -> Result<Option<T>, StepError> {
        match outcome.map_err(Into::into) {
            Ok(value) => Ok(Some(value)),
            Err(error) if is_about_data(&error) => {
                tracing::error!(%error, activity_id = %id, step, "an activity is left alone: it needs an operator");
                self.0.push(Failed { activity_id: id, step, error: error.to_string() });
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// Whether an operator has to look at data, rather than a part being broken.
pub(crate) fn is_about_data(error: &StepError) -> bool {
    matches!(
        error,
        StepError::Reservations(ReservationsError::Malformed { .. })
            | StepError::Store(StoreError::Malformed(_))
            | StepError::Comparison(
                ComparisonError::Reservations(ReservationsError::Malformed { .. })
                    | ComparisonError::Store(StoreError::Malformed(_))
            )
    )
}
