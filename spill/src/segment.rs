//! A segment: one file of records.
//!
//! ```text
//! file    head | record*
//! head    "SPWYSPIL" | version u32 | crc32c u32 | log id u64 | after u64 | first u64
//! ```
//! Integers are little endian. The CRC covers everything after itself. `after` is the number of the
//! newest record before this file: all records up to the oldest file's `after` are restored.
//! `first` is the lowest number that may follow, and gives the file its name.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes before the first record.
pub const HEAD_BYTES: u64 = 40;
/// The only version of the format.
pub const VERSION: u32 = 1;
const MAGIC: &[u8; 8] = b"SPWYSPIL";
const ENDING: &str = ".spill";

/// Head of a segment's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// Id of the log that it belongs to.
    pub log_id: u64,
    /// Number of the newest record before it; 0 if there was none.
    pub after: u64,
    /// Lowest number that one of its records may have.
    pub first: u64,
}

/// Reason why a file's head was not read.
#[derive(Debug, thiserror::Error)]
pub enum HeadError {
    /// Written by a newer version.
    #[error("its version {0} is unknown: it was written by a newer release")]
    Unknown(u32),
    /// Too short, or changed since it was written.
    #[error("its head is damaged")]
    Damaged,
    /// The file cannot be read.
    #[error("it cannot be read")]
    Io(#[from] io::Error),
}

impl Head {
    /// Returns the bytes of the head in the file.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Vec::with_capacity(24);
        body.extend_from_slice(&self.log_id.to_le_bytes());
        body.extend_from_slice(&self.after.to_le_bytes());
        body.extend_from_slice(&self.first.to_le_bytes());
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&crc32c::crc32c(&body).to_le_bytes());
        bytes.extend_from_slice(&body);
        bytes
    }

    /// Reads the head of a file.
    ///
    /// # Errors
    /// [`HeadError`].
    pub fn read(file: &File) -> Result<Self, HeadError> {
        let mut bytes = [0; HEAD_BYTES as usize];
        if let Err(error) = file.read_exact_at(&mut bytes, 0) {
            let is_short = error.kind() == io::ErrorKind::UnexpectedEof;
            return Err(if is_short { HeadError::Damaged } else { HeadError::Io(error) });
        }
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap_or([0; 4]));
        let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or([0; 8]));
        if !bytes.starts_with(MAGIC) {
            return Err(HeadError::Damaged);
        }
        if u32_at(8) != VERSION {
            return Err(HeadError::Unknown(u32_at(8)));
        }
        if crc32c::crc32c(&bytes[16..]) != u32_at(12) {
            return Err(HeadError::Damaged);
        }
        Ok(Self { log_id: u64_at(16), after: u64_at(24), first: u64_at(32) })
    }
}

/// Path of the segment that begins with `first`.
pub fn path(directory: &Path, first: u64) -> PathBuf {
    directory.join(format!("{first:016x}{ENDING}"))
}

/// Path to which a damaged segment is moved. This crate neither reads nor deletes it again.
pub fn path_aside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".damaged");
    PathBuf::from(name)
}

/// First number of a segment, from its file's name; `None` for any other file.
pub fn first_of(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(ENDING)?;
    (digits.len() == 16).then(|| u64::from_str_radix(digits, 16).ok())?
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn names_sort_as_their_numbers() {
        let name = |first| path(Path::new(""), first).to_string_lossy().into_owned();
        assert!(name(9) < name(10) && name(0xffff) < name(1 << 40));
        assert_eq!(first_of(&name(77)), Some(77));
        assert_eq!(first_of("lock"), None);
        assert_eq!(first_of("0000000000000001.spill.damaged"), None);
    }

    #[test]
    fn a_head_is_read_as_it_was_written_or_not_at_all() {
        let head = Head { log_id: 5, after: 6, first: 7 };
        let read = |bytes: &[u8]| {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(bytes).unwrap();
            Head::read(&file)
        };
        let bytes = head.encode();
        assert_eq!(bytes.len() as u64, HEAD_BYTES);
        assert_eq!(read(&bytes).unwrap(), head);
        assert!(matches!(read(&bytes[..39]), Err(HeadError::Damaged)));
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert!(read(&other).is_err(), "byte {at}");
        }
    }
}
