//! Executables of the other processes.

use std::path::PathBuf;

use crate::failure::Failure;

/// Path of another of our binaries, in the directory of this one. It may be missing.
pub(crate) fn beside_us(name: &str) -> Result<PathBuf, Failure> {
    let own = std::env::current_exe()
        .map_err(|error| Failure::Failed(format!("cannot find this executable: {error}")))?;
    Ok(own.with_file_name(name))
}
