//! Receives the messages of a process to its supervisor on a `NOTIFY_SOCKET`, like systemd.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::UnixDatagram;
use tokio::sync::mpsc::{self, Receiver};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Maximum number of unread messages, more than any test leaves. If they are not read, the process
/// waits.
const UNHEARD_MAX: usize = 4096;

/// Time within which a message must come, even on a busy machine.
const WITHIN: Duration = Duration::from_secs(30);

/// Receives the messages of one process.
#[derive(Debug)]
pub struct Supervisor {
    heard: Receiver<String>,
    path: PathBuf,
    listening: JoinHandle<()>,
}

impl Supervisor {
    /// Starts to listen in `directory`.
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

    /// `NOTIFY_SOCKET` of the process.
    pub fn address(&self) -> &str {
        self.path.to_str().expect("a temporary directory has a plain name")
    }

    /// Waits for `word`, such as `READY=1`. Other messages before it are skipped.
    pub async fn hears(&mut self, word: &str) {
        let heard =
            timeout(WITHIN, async { while self.heard.recv().await.as_deref() != Some(word) {} })
                .await;
        assert!(heard.is_ok(), "not within {WITHIN:?}: {word}");
    }

    /// Waits for `count` watchdog pings from now on.
    pub async fn hears_pings(&mut self, count: usize) {
        self.forget();
        for _ in 0..count {
            self.hears("WATCHDOG=1").await;
        }
    }

    /// Returns true if no message comes within `time` from now.
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
