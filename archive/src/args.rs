//! Settings of the archive: the same for the archiver and for the operator's commands.

use std::path::PathBuf;

use clap::Args;
use spillway_process::Checker;

use crate::keys::ArchiveKeys;
use crate::store::ArchiveUrl;

/// Settings of the archive, as given.
#[derive(Debug, Clone, Args)]
pub struct ArchiveArgs {
    /// The archive: file:///directory, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix. Access is
    /// taken from AWS_*, GOOGLE_* or AZURE_* variables
    #[arg(long, env = "ARCHIVE_URL", global = true)]
    pub archive_url: Option<String>,

    /// File with keys, one per line: an id and 32 bytes in base64. The first one encrypts new objects, all of
    /// them decrypt. Read again on SIGHUP, and within 10 s of a change. Not set: objects are not encrypted
    #[arg(long, env = "ARCHIVE_KEY_FILE", global = true)]
    pub archive_key_file: Option<PathBuf>,
}

impl ArchiveArgs {
    /// Checks the URL, which is required. `None` after a mistake.
    pub fn url(&self, checker: &mut Checker) -> Option<ArchiveUrl> {
        const KEY: &str = "ARCHIVE_URL";
        let text = self.archive_url.as_deref().map(str::trim).filter(|text| !text.is_empty());
        let Some(text) = text else {
            checker.mistake(
                KEY,
                "is required, such as file:///var/lib/spillway-archive or s3://bucket/prefix",
            );
            return None;
        };
        ArchiveUrl::parse(text).map_err(|problem| checker.mistake(KEY, problem)).ok()
    }

    /// Reads the keys.
    pub fn keys(&self, checker: &mut Checker) -> ArchiveKeys {
        let Some(file) = self.archive_key_file.clone() else { return ArchiveKeys::none() };
        ArchiveKeys::read(file).unwrap_or_else(|problem| {
            checker.mistake("ARCHIVE_KEY_FILE", problem);
            ArchiveKeys::none()
        })
    }
}
