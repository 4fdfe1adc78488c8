//! Findings of the doctor.

use axum::Json;
use axum::extract::State;
use spillway_console::model::doctor::DoctorReport;
use spillway_console::{ConsoleRoute, Permission, ProblemDetails};

use crate::console::ask;
use crate::console::state::ConsoleState;

/// Routes of this area.
pub(in crate::console) fn routes() -> Vec<ConsoleRoute<ConsoleState>> {
    vec![
        ConsoleRoute::read("/api/v1/doctor", Permission::Look, doctor)
            .answers::<DoctorReport>("Findings of all checks"),
    ]
}

async fn doctor(State(console): State<ConsoleState>) -> Result<Json<DoctorReport>, ProblemDetails> {
    ask::doctor::report(&console).await.map(Json)
}
