//! The directory of a spill: created, locked, and identified by a random id.
//!
//! Invariant: the process that holds a [`Directory`] is the only one on this machine. The kernel
//! keeps the lock, which ends with the process, in whatever way that ends.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rand::RngExt;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::segment::{self, HeadError};

const LOCK: &str = "lock";
const ID: &str = "id";

/// A locked directory.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    id: u64,
    /// Held as long as this value lives.
    _lock: File,
}

/// Reason why a directory cannot be used, as a sentence for the operator.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// Another process holds it.
    #[error("{0} is in use by another receiver: each needs a directory of its own")]
    InUse(PathBuf),
    /// The directory or a file in it cannot be created, read or written.
    #[error("{path}: {error}")]
    Io {
        /// Path that could not be used.
        path: PathBuf,
        /// Error of the file system.
        error: io::Error,
    },
    /// A segment in it belongs to another log.
    #[error("{0} belongs to another log: a spill directory is moved whole or not at all")]
    Foreign(PathBuf),
    /// The id file does not hold an id.
    #[error("{0} does not hold 16 hex digits: a spill directory is moved whole or not at all")]
    BadId(PathBuf),
    /// This release cannot read a segment in it.
    #[error("{path}: {error}")]
    Segment {
        /// Path of the segment.
        path: PathBuf,
        /// Reason why its head was not read.
        error: HeadError,
    },
}

impl Directory {
    /// Locks the directory at `path`, and creates it if it does not exist. The directory above it
    /// must exist: a mistyped path would be on another disk.
    ///
    /// # Errors
    /// [`DirectoryError`].
    pub fn take(path: &Path) -> Result<Self, DirectoryError> {
        make(path).map_err(at(path))?;
        let lock_path = path.join(LOCK);
        let lock = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&lock_path)
            .map_err(at(&lock_path))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(DirectoryError::InUse(path.to_path_buf())),
            Err(error) => return Err(at(&lock_path)(error.into())),
        }
        let id = id_of(path)?;
        Ok(Self { path: path.to_path_buf(), id, _lock: lock })
    }

    /// Path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Id of the log in it. It is random, and moves with the directory.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// First numbers of its segments, lowest first.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn segments(&self) -> Result<Vec<u64>, DirectoryError> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(at(&self.path))? {
            let name = entry.map_err(at(&self.path))?.file_name();
            found.extend(name.to_str().and_then(segment::first_of));
        }
        found.sort_unstable();
        Ok(found)
    }
}

/// Adds the path to an error of the file system.
pub fn at(path: &Path) -> impl Fn(io::Error) -> DirectoryError {
    move |error| DirectoryError::Io { path: path.to_path_buf(), error }
}

fn make(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => {}
        Err(_) if path.is_dir() => return Ok(()),
        Err(error) => return Err(error),
    }
    // The new name is synced. Without that, a power cut could remove it and all in it.
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

fn id_of(directory: &Path) -> Result<u64, DirectoryError> {
    let path = directory.join(ID);
    match fs::read_to_string(&path) {
        Ok(text) => u64::from_str_radix(text.trim(), 16)
            .ok()
            .filter(|_| text.trim().len() == 16)
            .ok_or(DirectoryError::BadId(path)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let id = rand::rng().random();
            write_id(directory, &path, id).map_err(at(&path))?;
            Ok(id)
        }
        Err(error) => Err(at(&path)(error)),
    }
}

/// Writes the id file completely or not at all, even if the power fails.
fn write_id(directory: &Path, path: &Path, id: u64) -> io::Result<()> {
    let unfinished = directory.join("id.new");
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
    writeln!(file, "{id:016x}")?;
    file.sync_all()?;
    fs::rename(&unfinished, path)?;
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_one_user_and_keeps_its_id() {
        let place = tempfile::tempdir().unwrap();
        let absent = place.path().join("mistyped/b");
        assert!(matches!(Directory::take(&absent), Err(DirectoryError::Io { .. })));
        assert!(!place.path().join("mistyped").exists(), "nothing is created");
        let path = place.path().join("a");
        let first = Directory::take(&path).unwrap();
        assert!(matches!(Directory::take(&path), Err(DirectoryError::InUse(_))));
        let id = first.id();
        drop(first);
        assert_eq!(Directory::take(&path).unwrap().id(), id);
        fs::write(path.join(ID), "nonsense").unwrap();
        assert!(matches!(Directory::take(&path), Err(DirectoryError::BadId(_))));
    }
}
