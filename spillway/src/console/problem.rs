//! Problems for what a verb failed with.

use spillway_console::ProblemDetails;

use crate::failure::Failure;

/// Problem for a failure. What is wrong with our own settings is no matter of the caller, and is only
/// logged.
pub(super) fn problem_of(failure: &Failure) -> ProblemDetails {
    match failure {
        Failure::Usage(_) | Failure::Failed(_) => ProblemDetails::bad_request(failure.to_string()),
        Failure::Queue(_) | Failure::Archive(_) | Failure::Denied(_) => {
            ProblemDetails::unavailable(failure.to_string())
        }
        Failure::Settings(_) | Failure::Output(_) => {
            tracing::error!(%failure, "a request failed by the console's own settings");
            ProblemDetails::unavailable("the console can't do this now: its log says why")
        }
    }
}

impl From<Failure> for ProblemDetails {
    fn from(failure: Failure) -> Self {
        problem_of(&failure)
    }
}
