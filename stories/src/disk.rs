//! A small separate file system that can be filled up. Only root may mount one.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{FallocateFlags, fallocate};

const BALLAST: &str = "ballast";

/// A disk that is mounted while this value lives.
#[derive(Debug)]
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Creates the path and mounts the disk there. `None` if this user may not mount.
    pub fn mount(path: PathBuf, mib: u32) -> Option<Self> {
        fs::create_dir(&path).expect("make a directory");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={mib}m"), "tmpfs"]).arg(&path);
        mount.output().is_ok_and(|output| output.status.success()).then_some(Self(path))
    }

    /// True if this user may mount a disk.
    pub fn is_allowed() -> bool {
        let directory = tempfile::tempdir().expect("make a directory");
        Self::mount(directory.path().join("disk"), 1).is_some()
    }

    /// Path of the disk.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Fills all free space.
    pub fn fill(&self) {
        let ballast = File::create(self.0.join(BALLAST)).expect("make a file");
        let (mut filled, mut bytes) = (0, 1 << 30);
        while bytes > 0 {
            match fallocate(&ballast, FallocateFlags::empty(), filled, bytes) {
                Ok(()) => filled += bytes,
                Err(_) => bytes /= 2,
            }
        }
    }

    /// Frees the space again.
    pub fn clear(&self) {
        fs::remove_file(self.0.join(BALLAST)).ok();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        Command::new("umount").arg("--lazy").arg(&self.0).status().ok();
    }
}
