//! Notices files that were replaced or changed, without a signal: in a container, nobody may be able
//! to send one.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time between two looks.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Looks after which what changes on and on is read all the same: a minute.
const LOOKS_CHANGING: u32 = 12;

/// Files, or directories, and what was seen of each.
#[derive(Debug)]
pub(crate) struct FileWatch {
    files: Vec<(PathBuf, Stamp)>,
    is_changing: bool,
    /// Looks in a row at which something had changed.
    changing: u32,
}

/// Device, inode, size, and time of the last change in nanoseconds; `None` if there is no file. A link
/// is followed, as Kubernetes replaces files by a link to their directory.
type Stamp = Option<(u64, u64, u64, i128)>;

impl FileWatch {
    /// Watches these files and directories, from what they are now. A directory changes when a file in
    /// it is created, replaced or removed.
    pub(crate) fn new(files: impl IntoIterator<Item = PathBuf>) -> Self {
        let files = files.into_iter().map(|file| {
            let stamp = stamp(&file);
            (file, stamp)
        });
        Self { files: files.collect(), is_changing: false, changing: 0 }
    }

    /// Sets whether a change was seen at the last look. After one, the next look notices it.
    pub(crate) fn set_changing(&mut self, is_changing: bool) {
        self.is_changing = is_changing;
    }

    /// True if something changed before the last look and nothing since: a file, or a directory, that is
    /// being written is not read. What changes on and on is noticed once a minute.
    pub(crate) fn notice_change(&mut self) -> bool {
        let mut is_changing = false;
        for (file, last) in &mut self.files {
            let now = stamp(file);
            is_changing |= now != *last;
            *last = now;
        }
        self.changing = if is_changing { self.changing + 1 } else { 0 };
        let is_read = !is_changing || self.changing.is_multiple_of(LOOKS_CHANGING);
        std::mem::replace(&mut self.is_changing, is_changing) && is_read
    }
}

fn stamp(file: &Path) -> Stamp {
    let about = std::fs::metadata(file).ok()?;
    let changed = i128::from(about.ctime()) * 1_000_000_000 + i128::from(about.ctime_nsec());
    Some((about.dev(), about.ino(), about.size(), changed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_noticed_once_it_is_over_or_goes_on() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = |name| directory.path().join(name);
        std::fs::write(path("a"), "1").expect("write");
        let mut watch = FileWatch::new([path("a"), path("b"), directory.path().to_owned()]);
        let mut looks = |count| (0..count).map(|_| watch.notice_change()).collect::<Vec<_>>();
        assert_eq!(looks(2), [false, false]);
        std::fs::write(path("a"), "12").expect("write");
        assert_eq!(looks(1), [false], "it may be written still");
        for text in 2..30 {
            std::fs::write(path("a"), "1".repeat(text)).expect("write");
            assert_eq!(looks(1), [text % 12 == 0], "it may be written for ever");
        }
        assert_eq!(looks(2), [true, false]);
        std::fs::write(path("b"), "").expect("write");
        assert_eq!(looks(3), [false, true, false]);
        std::fs::write(path("c"), "1").expect("write");
        std::fs::rename(path("c"), path("a")).expect("rename");
        assert_eq!(looks(3), [false, true, false]);
        std::fs::remove_file(path("a")).expect("remove");
        assert_eq!(looks(3), [false, true, false]);
        // Kubernetes replaces a link.
        std::os::unix::fs::symlink(path("b"), path("a")).expect("link");
        assert_eq!(looks(3), [false, true, false]);
    }
}
