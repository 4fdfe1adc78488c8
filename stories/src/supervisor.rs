//! What a process says to its supervisor, heard on a `NOTIFY_SOCKET` as systemd's.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::UnixDatagram;
use tokio::time::timeout;

/// A word comes within this time, on a busy machine.
const WITHIN: Duration = Duration::from_secs(30);

/// Hears one process.
#[derive(Debug)]
pub struct Supervisor {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Supervisor {
    /// Listens in `directory`.
    pub fn listen(directory: &Path) -> Self {
        let path = directory.join("notify.sock");
        let socket = UnixDatagram::bind(&path).expect("a socket to be notified on");
        Self { socket, path }
    }

    /// The `NOTIFY_SOCKET` of the process.
    pub fn address(&self) -> &str {
        self.path.to_str().expect("a temporary directory has a plain name")
    }

    /// Waits for `word`, such as `READY=1`; other words that come before it are passed over.
    pub async fn hears(&self, word: &str) {
        let heard = timeout(WITHIN, async { while self.next().await != word {} }).await;
        assert!(heard.is_ok(), "not within {WITHIN:?}: {word}");
    }

    /// Waits for `count` pings that come from now on.
    pub async fn hears_pings(&self, count: usize) {
        self.forget();
        for _ in 0..count {
            self.hears("WATCHDOG=1").await;
        }
    }

    /// Whether there is silence for so long, from now on.
    pub async fn hears_nothing(&self, time: Duration) -> bool {
        self.forget();
        timeout(time, self.next()).await.is_err()
    }

    fn forget(&self) {
        while self.socket.try_recv(&mut [0; 256]).is_ok() {}
    }

    async fn next(&self) -> String {
        let mut buffer = [0; 256];
        let bytes = self.socket.recv(&mut buffer).await.expect("a datagram");
        String::from_utf8_lossy(&buffer[..bytes]).trim_end().to_owned()
    }
}
