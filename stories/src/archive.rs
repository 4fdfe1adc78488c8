//! An archive as its readers see it: by `ops/archive/read.py`, which shares no code with the archiver, and by the
//! operators' command.

use std::path::{Path, PathBuf};
use std::process::Command;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::binaries::repository;
use crate::cell::{Cell, Settings};
use crate::kafka_topic::Arrival;
use crate::ledger::Event;
use crate::receipt::hash;

/// An archive that lies in a directory of this machine, by whatever way its objects come there.
#[derive(Debug)]
pub struct ArchiveDirectory(PathBuf);

impl ArchiveDirectory {
    /// Makes the directory.
    pub fn new(path: &Path) -> Self {
        std::fs::create_dir_all(path).expect("make a directory");
        Self(path.to_owned())
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// URL of the archive, for an archiver that writes into the directory itself.
    pub fn url(&self) -> String {
        format!("file://{}", self.0.display())
    }

    /// Paths of all objects.
    pub fn objects(&self) -> Vec<PathBuf> {
        let below = |path: PathBuf| {
            let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
            entries.map(|entry| entry.path()).collect::<Vec<_>>()
        };
        let days = below(self.0.clone()).into_iter().flat_map(below);
        let files = days.flat_map(below);
        files.filter(|file| file.extension().is_some_and(|kind| kind == "spwa")).collect()
    }

    /// Webhooks in the archive, in their order, as the script prints them. It must report no problem.
    pub fn webhooks(&self) -> Vec<Value> {
        let script = repository().join("ops/archive/read.py");
        let output = Command::new(script).arg(&self.0).output();
        let output =
            output.expect("python3 is missing; install it with: apt-get install python3 zstd");
        let problems = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "the archive cannot be read: {problems}");
        let text = String::from_utf8(output.stdout).expect("JSON is text");
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    /// The same, for a check of exactly-once: an archive is one partition.
    pub fn arrivals(&self) -> Vec<Arrival> {
        let arrival = |(offset, webhook): (usize, Value)| {
            let text = |name: &str| webhook[name].as_str().unwrap_or_default();
            let body = match webhook["body_base64"].as_str() {
                Some(body) => STANDARD.decode(body).expect("base64"),
                None => text("body").as_bytes().to_vec(),
            };
            Arrival {
                partition: 0,
                offset: i64::try_from(offset).expect("fewer than memory holds"),
                event: Event::of(text("webhook_id")),
                spillway_id: hash(text("spillway_id").as_bytes()),
                body_hash: hash(&body),
            }
        };
        self.webhooks().into_iter().enumerate().map(arrival).collect()
    }

    /// Runs `spillway archive verify`, which must find no problem. Returns the number of webhooks.
    pub async fn verified(&self, cell: &Cell, url: &str, settings: Settings<'_>) -> u64 {
        let arguments = ["archive", "verify", "--archive-url", url, "-o", "json"];
        let output = cell.run("spillway", &arguments, settings).await;
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{told} {}", String::from_utf8_lossy(&output.stderr));
        let told: Value = serde_json::from_str(&told).expect("JSON");
        told["webhooks"].as_u64().expect("a number")
    }
}
