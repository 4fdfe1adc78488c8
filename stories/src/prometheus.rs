//! A real Prometheus, with its files in one directory, and queries to it.

use std::ffi::OsString;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::Value;

use crate::answer::Answer;
use crate::client::Connection;
use crate::port;
use crate::process::{Process, Recipe};
use crate::until::until;

/// A running Prometheus. It is killed when this value is dropped.
#[derive(Debug)]
pub struct Prometheus {
    _process: Process,
    address: SocketAddr,
}

impl Prometheus {
    /// Starts Prometheus on a free port with this configuration. `directory` holds the
    /// configuration and the rules.
    pub async fn start(directory: &Path, configuration: &str) -> Self {
        let address = port::free();
        fs::write(directory.join("prometheus.yml"), configuration).expect("write prometheus.yml");
        let arguments = [
            "--config.file=prometheus.yml".to_owned(),
            "--storage.tsdb.path=prometheus".to_owned(),
            format!("--web.listen-address={address}"),
            "--log.level=warn".to_owned(),
        ];
        let recipe = Recipe {
            sockets: Vec::new(),
            name: "prometheus".into(),
            program: program("prometheus"),
            arguments: arguments.map(OsString::from).to_vec(),
            environment: Vec::new(),
            directory: directory.to_path_buf(),
        };
        let started = Self { _process: recipe.start(), address };
        until("prometheus is ready", Duration::from_secs(20), async || {
            started.get("/-/ready").await.is_ok_and(|answer| answer.status == 200)
        })
        .await;
        started
    }

    /// Base URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Names of the alerts that fire now, sorted.
    pub async fn firing(&self) -> Vec<String> {
        let alerts = self.api("/api/v1/alerts").await;
        let alerts = alerts["alerts"].as_array().expect("a list of alerts").iter();
        let firing = alerts.filter(|alert| alert["state"] == "firing");
        let mut names: Vec<String> =
            firing.map(|alert| text(&alert["labels"]["alertname"])).collect();
        names.sort();
        names.dedup();
        names
    }

    /// Values of an expression, which must not contain characters that a URL escapes.
    pub async fn values(&self, expression: &str) -> Vec<f64> {
        let found = self.api(&format!("/api/v1/query?query={expression}")).await;
        let rows = found["result"].as_array().expect("a vector").iter();
        rows.map(|row| text(&row["value"][1]).parse().expect("a number")).collect()
    }

    async fn api(&self, target: &str) -> Value {
        let answer = self.get(target).await.expect("prometheus answers");
        let mut json: Value = serde_json::from_slice(&answer.body).expect("JSON from prometheus");
        assert_eq!(json["status"], "success", "{target}: {json}");
        json["data"].take()
    }

    /// Uses HTTP/1.0, because its answers are never chunked.
    async fn get(&self, target: &str) -> std::io::Result<Answer> {
        let mut connection = Connection::open(self.address).await?;
        connection.write(format!("GET {target} HTTP/1.0\r\n\r\n").as_bytes()).await?;
        connection.read().await
    }
}

/// Runs promtool in `directory`.
pub fn promtool(directory: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(program("promtool"));
    command.args(arguments).current_dir(directory).output().expect("run promtool")
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text")).to_owned()
}

fn program(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|directory| directory.join(name))
        .find(|candidate| candidate.is_file())
        .unwrap_or_else(|| panic!("{name} is missing; install it with: apt-get install prometheus"))
}
