//! The app of the migration tests: `stories/app/server.mjs` around the handler that
//! docs/backends.md shows. It runs in its own process and keeps a journal of all its requests.

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

/// Host name that the app requires, which is the Host of every webhook of the stories.
pub const HOST_NAME: &str = "hooks.example";

/// A running app.
#[derive(Debug)]
pub struct App {
    process: Process,
    address: SocketAddr,
    directory: PathBuf,
}

/// One request in the app's journal.
#[derive(Clone, Debug)]
pub struct Line {
    /// Shopify's webhook id.
    pub webhook: String,
    /// `Spillway-Id`, if it came through Spillway.
    pub spillway: Option<String>,
    /// Path and query.
    pub path: String,
    /// Status that the app answered.
    pub status: u16,
    /// Result in the app: `applied`, `duplicate`, `stale`, or empty.
    pub outcome: String,
    body_hash: [u8; 32],
}

impl App {
    /// Starts an app with `workers` workers, each of which takes `work` for a webhook.
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

    /// Address on which the app listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Base URL of the app.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Sets if the app reports that its job queue is too deep.
    pub fn be_busy(&self, is_busy: bool) {
        let file = self.directory.join("busy");
        if is_busy {
            fs::write(file, "").expect("say that the app is busy");
        } else {
            fs::remove_file(file).expect("say that the app is not busy");
        }
    }

    /// The whole journal, in order.
    pub fn journal(&self) -> Vec<Line> {
        let journal = fs::read_to_string(self.directory.join("journal")).unwrap_or_default();
        // A line that is still being written has no newline yet.
        let whole = journal.rsplit_once('\n').map_or("", |(whole, _)| whole);
        whole.lines().map(Line::parse).collect()
    }

    /// Number of requests answered 200 that came through Spillway, or that came directly.
    pub fn taken(&self, by_spillway: bool) -> usize {
        let journal = self.journal();
        let taken = journal.iter().filter(|line| line.status == 200);
        taken.filter(|line| line.spillway.is_some() == by_spillway).count()
    }

    /// True while the app runs.
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

    /// Converts the line to a receipt as the backend has it. A request that came directly has no
    /// Spillway id; its position in the journal replaces it.
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
