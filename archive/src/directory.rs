//! Work on files that the crate `object_store` does not do: syncing directories that another process made, removing
//! what it left half-written, and finding out that a disk is not mounted any more.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::StoreError;
use crate::name::ObjectName;

/// Age from which a half-written file is removed. A put takes at most minutes: a writer that is older was
/// killed.
const STAGED_FOR: Duration = Duration::from_secs(3600);

/// Syncs every directory from that of an object up to `root`. The process that made them may have been killed
/// before it did.
///
/// # Errors
/// [`StoreError`]
pub(crate) async fn sync_parents(root: PathBuf, name: ObjectName) -> Result<(), StoreError> {
    let path = root.join(name.to_string());
    let about = path.clone();
    let synced = blocking(move || {
        let mut places = path.ancestors().skip(1).take_while(|place| place.starts_with(&root));
        places.try_for_each(|place| File::open(place)?.sync_all())
    });
    synced.await.map_err(|error| failed(&about, error))
}

/// Checks that the directory of an archive is there. Otherwise a put would make it, on the disk below the mount
/// point.
///
/// # Errors
/// [`StoreError::Unusable`] if it is not.
pub(crate) async fn ensure_there(root: &Path) -> Result<(), StoreError> {
    let gone = || {
        let root = root.display();
        StoreError::Unusable(format!("the directory {root} is gone; is its disk mounted?"))
    };
    let place = root.to_owned();
    match blocking(move || std::fs::metadata(place)).await {
        Ok(about) if about.is_dir() => Ok(()),
        Ok(_) => Err(gone()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(gone()),
        Err(error) => Err(failed(root, error)),
    }
}

/// Removes files that a killed process left half-written in the directories of a cell, from `first_day` on. What
/// cannot be removed is not listed, and only takes space.
pub(crate) async fn remove_staged(cell: PathBuf, first_day: String) {
    let removing = blocking(move || {
        for day in std::fs::read_dir(cell)?.flatten() {
            if *day.file_name().to_string_lossy() < *first_day {
                continue;
            }
            for file in std::fs::read_dir(day.path()).into_iter().flatten().flatten() {
                let is_meant = is_staged(&file.file_name().to_string_lossy()) && is_old(&file);
                if is_meant {
                    std::fs::remove_file(file.path()).ok();
                }
            }
        }
        Ok(())
    });
    removing.await.ok();
}

/// True for the name of a file that is being written: the crate `object_store` appends `#` and a number.
fn is_staged(name: &str) -> bool {
    let number = name.split_once(".spwa#").map(|(_, number)| number);
    number.is_some_and(|number| {
        !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit())
    })
}

/// True if nobody wrote to the file for long.
fn is_old(file: &std::fs::DirEntry) -> bool {
    let written = file.metadata().and_then(|about| about.modified()).ok();
    written.and_then(|at| at.elapsed().ok()).is_some_and(|age| age > STAGED_FOR)
}

fn failed(path: &Path, error: io::Error) -> StoreError {
    let path = path.display().to_string();
    match error.kind() {
        io::ErrorKind::NotFound => {
            object_store::Error::NotFound { path, source: Box::new(error) }.into()
        }
        _ => object_store::Error::Generic { store: "LocalFileSystem", source: Box::new(error) }
            .into(),
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_written_files_are_known_by_their_names() {
        assert!(is_staged("a.spwa#1") && is_staged("a.spwa#12"));
        assert!(!is_staged("a.spwa") && !is_staged("a.spwa#") && !is_staged("a.spwa#x"));
    }
}
