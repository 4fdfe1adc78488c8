//! The writing side of the file system, as an interface that a test can make fail.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// File system that holds the segments.
pub trait Disk: Send {
    /// Creates a file that does not exist yet.
    ///
    /// # Errors
    /// From the file system.
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;

    /// Removes a file.
    ///
    /// # Errors
    /// From the file system.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Makes sure that the names in `directory` survive a power cut.
    ///
    /// # Errors
    /// From the file system.
    fn sync_directory(&self, directory: &Path) -> io::Result<()>;
}

/// File of a segment that is being written.
pub trait DiskFile: Send {
    /// Writes a part of `bytes` and returns its length.
    ///
    /// # Errors
    /// From the file system.
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<usize>;

    /// Makes sure that what was written survives a power cut. After an error, the state of
    /// everything written since the last success is unknown, whatever a second call returns.
    ///
    /// # Errors
    /// From the file system.
    fn sync(&mut self) -> io::Result<()>;

    /// Cuts the file off at `end`.
    ///
    /// # Errors
    /// From the file system.
    fn truncate(&mut self, end: u64) -> io::Result<()>;
}

/// The real file system.
#[derive(Debug, Clone, Copy)]
pub struct RealDisk;

impl Disk for RealDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        // Webhooks hold personal data: no other user may read them.
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        Ok(Box::new(file))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        File::open(directory)?.sync_all()
    }
}

impl DiskFile for File {
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        FileExt::write_at(self, bytes, offset)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }

    fn truncate(&mut self, end: u64) -> io::Result<()> {
        self.set_len(end)
    }
}

/// Writes all of `bytes`, in several calls if needed.
///
/// # Errors
/// From the file system. Part of the bytes may have been written.
pub fn write_all(file: &mut dyn DiskFile, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.write_at(bytes, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                bytes = &bytes[written..];
                offset += written as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
