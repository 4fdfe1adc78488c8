//! A server that speaks S3: rclone, whose buckets are directories.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::process::{Process, Recipe};
use crate::until::until;
use crate::{binaries, port};

/// Time within which it listens, on a busy machine.
const READY_WITHIN: Duration = Duration::from_secs(30);
const KEY: &str = "story";
const SECRET: &str = "hush-this-is-the-secret-of-a-bucket";

/// The S3 server of one test. Signals and restarts are those of [`Process`].
#[derive(Debug)]
pub struct S3Server {
    process: Process,
    address: SocketAddr,
    root: PathBuf,
    /// Settings with which an archiver reaches it.
    settings: [(&'static str, String); 5],
}

impl S3Server {
    /// Starts a server with an empty bucket of this name, without waiting.
    pub fn start(directory: &Path, bucket: &str) -> Self {
        let address = port::free();
        let root = directory.join("s3");
        std::fs::create_dir_all(root.join(bucket)).expect("make a bucket");
        let login = format!("{KEY},{SECRET}");
        let listen = address.to_string();
        let arguments = ["serve", "s3", "--addr", &listen, "--auth-key", &login];
        let mut arguments = arguments.map(OsString::from).to_vec();
        arguments.push(root.clone().into());
        let home = directory.display().to_string();
        let recipe = Recipe {
            name: "rclone".to_owned(),
            program: binaries::rclone(),
            arguments,
            environment: vec![("HOME".to_owned(), home)],
            directory: directory.to_path_buf(),
            sockets: Vec::new(),
        };
        let settings = [
            ("AWS_ENDPOINT", format!("http://{address}")),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("AWS_ACCESS_KEY_ID", KEY.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", SECRET.to_owned()),
        ];
        Self { process: recipe.start(), address, root, settings }
    }

    /// Waits until it listens.
    pub async fn ready(&self) {
        let listens = async || tokio::net::TcpStream::connect(self.address).await.is_ok();
        until("rclone listens", READY_WITHIN, listens).await;
    }

    /// Directory that holds the objects of a bucket.
    pub fn bucket(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Settings with which an archiver reaches it.
    pub fn settings(&self) -> Vec<(&str, &str)> {
        self.settings.iter().map(|(name, value)| (*name, value.as_str())).collect()
    }
}

impl Deref for S3Server {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

impl DerefMut for S3Server {
    fn deref_mut(&mut self) -> &mut Process {
        &mut self.process
    }
}
