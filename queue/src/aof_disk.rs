//! Disk that holds the AOF of a Redis on this machine. A disk may hang: the task that looks at Redis
//! must go on then, since it answers for its process.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;

/// Time for which a look waits for the disk. One that works answers within microseconds.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);

/// Disk of the AOF, as it was last seen. Keep it between looks. Bounded: a look that hangs holds one
/// thread, and no other begins before it returns.
#[derive(Debug, Default)]
pub struct AofDisk {
    last: DiskFacts,
    looking: Option<JoinHandle<DiskFacts>>,
}

/// Facts about a disk, each `None` if it is not known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct DiskFacts {
    pub(crate) free_bytes: Option<u64>,
    /// Device number.
    pub(crate) device: Option<u64>,
}

impl AofDisk {
    /// Looks at the disk that holds `directory`. While it hangs, returns what was seen last.
    pub(crate) async fn look(&mut self, directory: PathBuf) -> DiskFacts {
        self.look_by(move || read(&directory)).await
    }

    async fn look_by(&mut self, read: impl FnOnce() -> DiskFacts + Send + 'static) -> DiskFacts {
        let hangs = self.looking.is_some();
        let looking = self.looking.get_or_insert_with(|| spawn_blocking(read));
        // Waiting again for one that hangs would only delay the look at Redis.
        let patience = if hangs { Duration::ZERO } else { ANSWER_WITHIN };
        let looked = timeout(patience, looking).await;
        if let Ok(looked) = looked {
            self.looking = None;
            self.last = looked.unwrap_or_default();
        }
        self.last
    }
}

fn read(directory: &Path) -> DiskFacts {
    let space = rustix::fs::statvfs(directory).ok();
    DiskFacts {
        free_bytes: space.map(|space| space.f_bavail.saturating_mul(space.f_frsize)),
        device: rustix::fs::stat(directory).ok().map(|stat| stat.st_dev),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;

    #[tokio::test]
    async fn a_disk_that_hangs_is_asked_once_and_shown_as_it_was() {
        let mut disk = AofDisk::default();
        let seen = |free| DiskFacts { free_bytes: Some(free), device: Some(1) };
        assert_eq!(disk.look_by(move || seen(1)).await, seen(1));
        let (release, released) = sync_channel::<()>(0);
        let hanging = move || {
            released.recv().ok();
            seen(2)
        };
        assert_eq!(disk.look_by(hanging).await, seen(1));
        for _ in 0..3 {
            assert_eq!(disk.look_by(move || seen(3)).await, seen(1));
        }
        drop(release);
        let mut next = seen(1);
        while next == seen(1) {
            tokio::task::yield_now().await;
            next = disk.look_by(move || seen(3)).await;
        }
        assert_eq!(next, seen(2), "no other look began meanwhile");
        assert_eq!(disk.look_by(move || seen(3)).await, seen(3));
    }

    #[tokio::test]
    async fn what_cannot_be_read_is_not_known() {
        let mut disk = AofDisk::default();
        let facts = disk.look("/".into()).await;
        assert!(facts.free_bytes.is_some() && facts.device.is_some(), "{facts:?}");
        assert_eq!(disk.look("/nonexistent".into()).await, DiskFacts::default());
    }
}
