//! An nginx that any user can run: in the foreground, with its files in one directory.

use std::ffi::OsString;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::binaries::repository;
use crate::client::Connection;
use crate::process::{Process, Recipe};
use crate::until::until;

/// A running nginx.
#[derive(Debug)]
pub struct Nginx {
    process: Process,
    directory: PathBuf,
    has_workers: bool,
}

/// Configuration around a site.
const AROUND: &str = "
daemon off;
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

/// One process is enough for a site that does not change.
const ALONE: &str = "master_process off;";

/// A reload needs a master and workers. Workers of another user could not enter a test's directory.
const WITH_WORKERS: &str = "user root; worker_processes 2;";

/// Time limit for nginx to end. A worker without work ends at once.
const ENDS_WITHIN: Duration = Duration::from_secs(10);

impl Nginx {
    /// Starts nginx with this site and waits until it listens on `address`. File names in the site
    /// are relative to `directory`.
    pub async fn start(directory: &Path, site: &str, address: SocketAddr) -> Self {
        Self::start_as(false, directory, site, address).await
    }

    /// Same as [`start`](Self::start), with a master and workers, so that it can be reloaded.
    pub async fn start_reloadable(directory: &Path, site: &str, address: SocketAddr) -> Self {
        Self::start_as(true, directory, site, address).await
    }

    async fn start_as(
        has_workers: bool,
        directory: &Path,
        site: &str,
        address: SocketAddr,
    ) -> Self {
        let mode = if has_workers { WITH_WORKERS } else { ALONE };
        fs::write(directory.join("site.conf"), site).expect("write the site");
        fs::write(directory.join("nginx.conf"), format!("{mode}{AROUND}"))
            .expect("write nginx.conf");
        let recipe = Recipe {
            name: "nginx".into(),
            program: program(),
            arguments: FILES.map(OsString::from).to_vec(),
            environment: Vec::new(),
            directory: directory.to_path_buf(),
            sockets: Vec::new(),
        };
        let nginx =
            Self { process: recipe.start(), directory: directory.to_path_buf(), has_workers };
        let listens = async || Connection::open(address).await.is_ok();
        until("nginx listens", Duration::from_secs(10), listens).await;
        nginx
    }

    /// Replaces the site and reloads it with the shipped script. The script waits until all workers
    /// with the old site are gone.
    pub async fn reload(&self, site: &str) {
        assert!(self.has_workers, "an nginx without workers is not reloaded as others are");
        fs::write(self.directory.join("site.conf"), site).expect("write the site");
        let mut reload = Command::new(repository().join("ops/nginx/reload.sh"));
        reload.args(FILES).env("NGINX_PID", "nginx.pid").current_dir(&self.directory);
        let run = move || reload.output().expect("run ops/nginx/reload.sh");
        let ended = tokio::task::spawn_blocking(run).await.expect("it was run");
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    }
}

impl Drop for Nginx {
    /// Stops the workers too, which outlive a killed master.
    fn drop(&mut self) {
        if self.has_workers && self.process.is_running() {
            self.process.sigterm();
            self.process.wait(ENDS_WITHIN);
        }
    }
}

/// Arguments that make nginx use the files in its working directory.
const FILES: [&str; 6] = ["-p", ".", "-c", "nginx.conf", "-e", "stderr"];

fn program() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain([PathBuf::from("/usr/sbin")])
        .map(|directory| directory.join("nginx"))
        .find(|candidate| candidate.is_file())
        .expect("nginx is missing; install it with: apt-get install nginx-light")
}
