//! What a process says to its supervisor, heard on a `NOTIFY_SOCKET` as systemd's.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::UnixDatagram;
use tokio::sync::mpsc::{self, Receiver};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// More words than any test lets pass unheard. Who does not read them makes the process wait.
const UNHEARD_MAX: usize = 4096;

/// A word comes within this time, on a busy machine.
const WITHIN: Duration = Duration::from_secs(30);

/// Hears one process.
#[derive(Debug)]
pub struct Supervisor {
    heard: Receiver<String>,
    path: PathBuf,
    listening: JoinHandle<()>,
}

impl Supervisor {
    /// Listens in `directory`.
    pub fn listen(directory: &Path) -> Self {
        let path = directory.join("notify.sock");
        let socket = UnixDatagram::bind(&path).expect("a socket to be notified on");
        let (sender, heard) = mpsc::channel(UNHEARD_MAX);
        let listening = tokio::spawn(async move {
            let mut buffer = [0; 256];
            while let Ok(bytes) = socket.recv(&mut buffer).await {
                let word = String::from_utf8_lossy(&buffer[..bytes]).trim_end().to_owned();
                if sender.send(word).await.is_err() {
                    return;
                }
            }
        });
        Self { heard, path, listening }
    }

    /// The `NOTIFY_SOCKET` of the process.
    pub fn address(&self) -> &str {
        self.path.to_str().expect("a temporary directory has a plain name")
    }

    /// Waits for `word`, such as `READY=1`; other words that come before it are passed over.
    pub async fn hears(&mut self, word: &str) {
        let heard =
            timeout(WITHIN, async { while self.heard.recv().await.as_deref() != Some(word) {} })
                .await;
        assert!(heard.is_ok(), "not within {WITHIN:?}: {word}");
    }

    /// Waits for `count` pings that come from now on.
    pub async fn hears_pings(&mut self, count: usize) {
        self.forget();
        for _ in 0..count {
            self.hears("WATCHDOG=1").await;
        }
    }

    /// Whether there is silence for so long, from now on.
    pub async fn hears_nothing(&mut self, time: Duration) -> bool {
        self.forget();
        timeout(time, self.heard.recv()).await.is_err()
    }

    fn forget(&mut self) {
        while self.heard.try_recv().is_ok() {}
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.listening.abort();
    }
}
