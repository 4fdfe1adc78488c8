//! A way to Redis on which one connection can be swallowed, as by a firewall that forgot it: both
//! ends believe that it lives, nothing comes through, and every other connection is well.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;

/// What only the connection of a batcher says.
const APPEND: &[u8] = b"XADD";

/// The way, for as long as this lives.
#[derive(Debug)]
pub struct BlackHole {
    socket: PathBuf,
    is_open: Arc<AtomicBool>,
    accepting: JoinHandle<()>,
}

impl BlackHole {
    /// Listens in `directory`, before the Redis at `upstream`.
    pub fn before(upstream: &Path, directory: &Path) -> Self {
        let socket = directory.join("black-hole.sock");
        let listener = UnixListener::bind(&socket).expect("a socket before Redis");
        let is_open = Arc::new(AtomicBool::new(false));
        let accepting = tokio::spawn({
            let (upstream, is_open) = (upstream.to_owned(), is_open.clone());
            async move {
                while let Ok((client, _)) = listener.accept().await {
                    tokio::spawn(pass(client, upstream.clone(), is_open.clone()));
                }
            }
        });
        Self { socket, is_open, accepting }
    }

    /// The `REDIS_URL` through it.
    pub fn url(&self) -> String {
        format!("unix://{}", self.socket.display())
    }

    /// Swallows each connection from its next append on.
    pub fn open(&self) {
        self.is_open.store(true, Ordering::Relaxed);
    }
}

impl Drop for BlackHole {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn pass(mut client: UnixStream, upstream: PathBuf, is_open: Arc<AtomicBool>) {
    let Ok(mut redis) = UnixStream::connect(&upstream).await else { return };
    let (mut requests, mut replies) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    loop {
        tokio::select! {
            Ok(bytes @ 1..) = client.read(&mut requests) => {
                let request = &requests[..bytes];
                if is_open.load(Ordering::Relaxed)
                    && request.windows(APPEND.len()).any(|word| word == APPEND)
                {
                    std::future::pending::<()>().await;
                }
                if redis.write_all(request).await.is_err() {
                    return;
                }
            }
            Ok(bytes @ 1..) = redis.read(&mut replies) => {
                if client.write_all(&replies[..bytes]).await.is_err() {
                    return;
                }
            }
            else => return,
        }
    }
}
