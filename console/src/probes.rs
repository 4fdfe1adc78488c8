//! Paths of probes: `/livez` and `/readyz`, as the other processes have them on their admin address. They need no login,
//! and the name of no host: a probe has neither, and the answer says nothing about the cell.

/// Path that is 200 while the process works.
pub const LIVEZ: &str = "/livez";
/// Path that is 200 while the process does its work, and 503 with a reason while it does not.
pub const READYZ: &str = "/readyz";

/// True for the path of a probe.
pub(crate) fn is_probe(path: &str) -> bool {
    [LIVEZ, READYZ].contains(&path)
}
