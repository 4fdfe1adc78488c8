//! Work on files that the crate `object_store` does not do: writing a file again only while it exists, syncing
//! directories that another process made, removing what it left half-written, and finding out that a disk is not mounted
//! any more.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use crate::error::StoreError;
use crate::name::ObjectName;

/// Age from which a half-written file is removed. A put takes at most minutes: a writer that is older was
/// killed.
const STAGED_FOR: Duration = Duration::from_secs(3600);

/// Writes the bytes of an object into a new file, which takes the place of the one that is there. One that was
/// deleted meanwhile does not come back. Syncs the file, and every directory from its own up to `root`: the process
/// that made them may have been killed before it did.
///
/// # Errors
/// [`StoreError`]; [`StoreError::Missing`] if the object is gone.
pub(crate) async fn write_again(
    root: &Path,
    name: &ObjectName,
    bytes: Bytes,
) -> Result<(), StoreError> {
    let path = root.join(name.to_string());
    let about = path.clone();
    let root = root.to_owned();
    let written = blocking(move || {
        // A process that was killed left them: without this, each start would add one.
        remove_staged_of(&path)?;
        let staged = staged(&path);
        let replaced = write_synced(&staged, &bytes).and_then(|()| replace(&staged, &path));
        // It holds what was replaced, or what could not take its place.
        let removed = remove_if_there(&staged);
        replaced.and(removed)?;
        let mut places = path.ancestors().skip(1).take_while(|place| place.starts_with(&root));
        places.try_for_each(|place| File::open(place)?.sync_all())
    });
    written.await.map_err(|error| failed(&about, error))
}

/// Removes half-written files of one object, which is about to be deleted: they hold its webhooks, too.
///
/// # Errors
/// [`StoreError`]
pub(crate) async fn remove_staged_beside(root: &Path, name: &ObjectName) -> Result<(), StoreError> {
    let path = root.join(name.to_string());
    let about = path.clone();
    match blocking(move || remove_staged_of(&path)).await {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(&about, error)),
        _ => Ok(()),
    }
}

/// File into which an object is written before it gets its name. No list shows it.
fn staged(path: &Path) -> PathBuf {
    let mut staged = path.as_os_str().to_owned();
    staged.push("#1");
    staged.into()
}

fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create_new(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Lets a file take the place of another one, which must exist. Where the file system can, both change places at
/// once. Elsewhere, a deletion between the look and the change is not seen.
fn replace(staged: &Path, path: &Path) -> io::Result<()> {
    match renameat_with(CWD, staged, CWD, path, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(()),
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            std::fs::metadata(path)?;
            std::fs::rename(staged, path)
        }
        // The object is gone, unless only the new file is.
        Err(Errno::NOENT) if path.exists() => {
            Err(io::Error::other("another process removed the file that was being written"))
        }
        Err(error) => Err(error.into()),
    }
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Removes half-written files of one object, whatever their age.
fn remove_staged_of(path: &Path) -> io::Result<()> {
    let object = path.file_name().unwrap_or_default().to_string_lossy();
    for file in std::fs::read_dir(path.parent().unwrap_or(path))? {
        let file = file?;
        let name = file.file_name();
        let name = name.to_string_lossy();
        if is_staged(&name) && name.split_once('#').is_some_and(|(stem, _)| stem == object) {
            remove_if_there(&file.path())?;
        }
    }
    Ok(())
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
    use spillway_webhook::StreamId;

    use super::*;

    fn name(tag: u32) -> ObjectName {
        let id = StreamId { ms: 1, seq: 0 };
        ObjectName { cell: 1, first: id, last: id, webhooks: 1, tag, generation: 0 }
    }

    /// Names of the files beside an object, sorted.
    fn files(path: &Path) -> Vec<String> {
        let listed = std::fs::read_dir(path.parent().expect("a directory")).expect("a list");
        let name = |file: io::Result<std::fs::DirEntry>| file.expect("a file").file_name();
        let mut names: Vec<_> =
            listed.map(|file| name(file).to_string_lossy().into_owned()).collect();
        names.sort_unstable();
        names
    }

    #[tokio::test]
    async fn an_object_is_written_again_and_half_written_files_of_it_are_removed() {
        let root = tempfile::tempdir().expect("a directory");
        let path = root.path().join(name(1).to_string());
        let other = root.path().join(name(2).to_string());
        let object = name(1);
        std::fs::create_dir_all(path.parent().expect("a directory")).expect("make it");
        std::fs::write(&path, "object").expect("write");
        for staged in [format!("{}#1", path.display()), format!("{}#7", path.display())] {
            std::fs::write(staged, "half").expect("write");
        }
        std::fs::write(staged(&other), "of another object").expect("write");
        let written = write_again(root.path(), &object, Bytes::from_static(b"again"));
        written.await.expect("it is written");
        assert_eq!(std::fs::read(&path).expect("its bytes"), b"again");
        let left = [&path, &staged(&other)]
            .map(|path| path.file_name().expect("a name").to_string_lossy().into_owned());
        assert_eq!(files(&path), left);
        remove_staged_beside(root.path(), &name(2)).await.expect("it is removed");
        assert_eq!(files(&path), left[..1]);
    }

    #[tokio::test]
    async fn an_object_that_was_deleted_meanwhile_does_not_come_back() {
        let root = tempfile::tempdir().expect("a directory");
        let path = root.path().join(name(1).to_string());
        let again = async || write_again(root.path(), &name(1), Bytes::from_static(b"b")).await;
        let gone = again().await.expect_err("its day has no directory");
        assert_eq!(gone.kind(), "missing");
        std::fs::create_dir_all(path.parent().expect("a directory")).expect("make it");
        assert_eq!(again().await.expect_err("it is gone").kind(), "missing");
        assert_eq!(files(&path), [""; 0], "nothing is left");
    }

    #[test]
    fn half_written_files_are_known_by_their_names() {
        assert!(is_staged("a.spwa#1") && is_staged("a.spwa#12"));
        assert!(!is_staged("a.spwa") && !is_staged("a.spwa#") && !is_staged("a.spwa#x"));
    }
}
