//! The app of the migration: `stories/app/server.mjs` around the handler that docs/backends.md shows,
//! in a process of its own, and its journal of every request it was sent.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::binaries::repository;
use crate::client::Connection;
use crate::page;
use crate::port;
use crate::process::{Process, Recipe};
use crate::receipt::Receipt;
use crate::until::until;
use crate::wire::Headers;

/// The name that the app insists on: what every webhook of the stories has in Host.
pub const HOST_NAME: &str = "hooks.example";

/// A running app.
#[derive(Debug)]
pub struct App {
    process: Process,
    address: SocketAddr,
    directory: PathBuf,
}

/// One request, as the app saw it.
#[derive(Clone, Debug)]
pub struct Line {
    /// Shopify's id of the webhook.
    pub webhook: String,
    /// `Spillway-Id`, where it came that way.
    pub spillway: Option<String>,
    /// Path and query.
    pub path: String,
    /// What the app answered.
    pub status: u16,
    /// What the app made of it: `applied`, `duplicate`, `stale`, or nothing.
    pub outcome: String,
    body_hash: [u8; 32],
}

impl App {
    /// Starts one with so many workers, each of which takes so long for a webhook.
    pub async fn start(directory: &Path, secrets: &str, workers: usize, work: Duration) -> Self {
        let directory = directory.join("app");
        fs::create_dir(&directory).expect("make the app's directory");
        let server = repository().join("stories/app/server.mjs");
        fs::copy(server, directory.join("server.mjs")).expect("copy the server");
        let handler = page::only_block("docs/backends.md", "js");
        fs::write(directory.join("webhooks.mjs"), handler).expect("write the handler");
        let address = port::free();
        let text = |text: &str| text.to_owned();
        let environment = [
            ("PORT", address.port().to_string()),
            ("HOST_NAME", text(HOST_NAME)),
            ("SECRETS", text(secrets)),
            ("JOURNAL", text("journal")),
            ("WORKERS", workers.to_string()),
            ("WORK_MS", work.as_millis().to_string()),
            ("BUSY_FILE", text("busy")),
        ];
        let recipe = Recipe {
            sockets: Vec::new(),
            name: "app".to_owned(),
            program: node(),
            arguments: vec!["server.mjs".into()],
            environment: environment.map(|(key, value)| (key.to_owned(), value)).to_vec(),
            directory: directory.clone(),
        };
        let process = recipe.start();
        let listens = async || Connection::open(address).await.is_ok();
        until("the app listens", Duration::from_secs(20), listens).await;
        Self { process, address, directory }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its base URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// From now on its job queue is too deep, or is not.
    pub fn be_busy(&self, is_busy: bool) {
        let file = self.directory.join("busy");
        if is_busy {
            fs::write(file, "").expect("say that the app is busy");
        } else {
            fs::remove_file(file).expect("say that the app is not busy");
        }
    }

    /// Its whole journal, in order.
    pub fn journal(&self) -> Vec<Line> {
        let journal = fs::read_to_string(self.directory.join("journal")).unwrap_or_default();
        // A line that is being written has no end yet.
        let whole = journal.rsplit_once('\n').map_or("", |(whole, _)| whole);
        whole.lines().map(Line::parse).collect()
    }

    /// How many requests it answered 200 that came by Spillway, or did not.
    pub fn taken(&self, by_spillway: bool) -> usize {
        let journal = self.journal();
        let taken = journal.iter().filter(|line| line.status == 200);
        taken.filter(|line| line.spillway.is_some() == by_spillway).count()
    }

    /// True while it has not ended.
    pub fn is_running(&mut self) -> bool {
        self.process.is_running()
    }
}

impl Line {
    fn parse(line: &str) -> Self {
        let line: Value = serde_json::from_str(line).expect("a line of the journal is JSON");
        let text = |name: &str| line[name].as_str().map(str::to_owned);
        let body = text("body").expect("a hash");
        let byte = |at: usize| u8::from_str_radix(&body[2 * at..2 * at + 2], 16).expect("hex");
        Self {
            webhook: text("webhook").unwrap_or_default(),
            spillway: text("spillway"),
            path: text("path").expect("a path"),
            status: u16::try_from(line["status"].as_u64().expect("a status")).expect("a status"),
            outcome: text("outcome").unwrap_or_default(),
            body_hash: std::array::from_fn(byte),
        }
    }

    /// The same in the form of the backend's. What came straight has an id of its own: `place` in the
    /// journal.
    pub fn receipt(&self, place: usize) -> Receipt {
        let copy = self.spillway.clone().unwrap_or_else(|| format!("straight-{place}"));
        let headers = [("X-Shopify-Webhook-Id", &self.webhook), ("Spillway-Id", &copy)];
        let header = |(name, value): (&str, &String)| (name.to_owned(), value.clone().into_bytes());
        Receipt {
            arrived: Instant::now(),
            answered: None,
            status: Some(self.status),
            abandoned: false,
            method: "POST".to_owned(),
            target: self.path.clone(),
            headers: Headers(headers.map(header).to_vec()),
            body_hash: self.body_hash,
            body: None,
        }
    }
}

fn node() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|directory| directory.join("node"))
        .find(|candidate| candidate.is_file())
        .expect("node is missing; install it with: apt-get install nodejs")
}
