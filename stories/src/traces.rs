//! Traces of a person in files: searched for byte by byte, also in what is compressed.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

/// First bytes of a zstd frame.
const FRAME: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Files below a directory that show one of these texts, each with the text.
pub fn traces(directory: &Path, texts: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for file in files(directory) {
        // Redis deletes old files meanwhile.
        let Ok(bytes) = fs::read(&file) else { continue };
        let unpacked = frames(&bytes);
        for text in texts {
            let shows =
                |bytes: &[u8]| bytes.windows(text.len()).any(|part| part == text.as_bytes());
            if shows(&bytes) || unpacked.iter().any(|frame| shows(frame)) {
                found.push(format!("{}: {text}", file.display()));
            }
        }
    }
    found
}

/// Content of each zstd frame in these bytes, as far as it can be decompressed.
fn frames(bytes: &[u8]) -> Vec<Vec<u8>> {
    let begins = bytes.windows(FRAME.len()).enumerate().filter(|(_, part)| **part == FRAME);
    let unpack = |(at, _): (usize, &[u8])| {
        let mut content = Vec::new();
        let decoder = zstd::stream::read::Decoder::new(&bytes[at..]).ok()?;
        // Other bytes follow, or these are no frame.
        decoder.single_frame().read_to_end(&mut content).ok();
        Some(content)
    };
    begins.filter_map(unpack).collect()
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let below = |path: PathBuf| match path.is_dir() {
        true => files(&path),
        false if path.is_file() => vec![path],
        // A socket.
        false => Vec::new(),
    };
    entries.flat_map(|entry| below(entry.path())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_found_raw_and_compressed() {
        let directory = tempfile::tempdir().unwrap();
        let below = directory.path().join("below");
        fs::create_dir(&below).unwrap();
        fs::write(directory.path().join("raw"), "xx needle xx").unwrap();
        let packed = zstd::bulk::compress(&b"needle ".repeat(50), 1).unwrap();
        fs::write(below.join("packed"), [b"$12\r\n", &packed[..], b"\r\n"].concat()).unwrap();
        fs::write(below.join("other"), "nothing").unwrap();
        assert_eq!(traces(directory.path(), &["needle"]).len(), 2);
        assert!(traces(directory.path(), &["haystack"]).is_empty());
    }
}
