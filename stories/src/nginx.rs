//! nginx as anybody may run it: in the foreground, in one process, its files in one directory.

use std::ffi::OsString;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::client::Connection;
use crate::process::{Process, Recipe};
use crate::until::until;

/// A running nginx.
#[derive(Debug)]
pub struct Nginx {
    _process: Process,
}

/// What belongs around a site.
const AROUND: &str = "
daemon off;
master_process off;
pid nginx.pid;
error_log stderr warn;
events { worker_connections 512; }
http {
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    include site.conf;
}
";

impl Nginx {
    /// Starts one with this site, in which files are named from `directory`, and waits until it
    /// listens on `address`.
    pub async fn start(directory: &Path, site: &str, address: SocketAddr) -> Self {
        fs::write(directory.join("site.conf"), site).expect("write the site");
        fs::write(directory.join("nginx.conf"), AROUND).expect("write nginx.conf");
        let arguments = ["-p", ".", "-c", "nginx.conf", "-e", "stderr"].map(OsString::from);
        let recipe = Recipe {
            name: "nginx".into(),
            program: program(),
            arguments: arguments.to_vec(),
            environment: Vec::new(),
            directory: directory.to_path_buf(),
            socket: None,
        };
        let process = recipe.start();
        let listens = async || Connection::open(address).await.is_ok();
        until("nginx listens", Duration::from_secs(10), listens).await;
        Self { _process: process }
    }
}

fn program() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain([PathBuf::from("/usr/sbin")])
        .map(|directory| directory.join("nginx"))
        .find(|candidate| candidate.is_file())
        .expect("nginx is missing; install it with: apt-get install nginx-light")
}
