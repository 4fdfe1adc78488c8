//! Findings of the doctor.

use schemars::JsonSchema;
use serde::Serialize;

/// Findings of all checks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct DoctorReport {
    /// Time of the checks, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// Findings, in the order of the checks.
    pub findings: Vec<DoctorFinding>,
}

/// Finding of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct DoctorFinding {
    /// Severity.
    pub level: FindingLevel,
    /// The thing checked, and its state.
    pub what: String,
    /// Instructions to fix it; empty if nothing needs to be done.
    pub fix: String,
}

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FindingLevel {
    /// Nothing is wrong.
    Ok,
    /// Something works, and could be better.
    Warning,
    /// Something does not work.
    Problem,
}
