//! A slow way to Redis: so many bytes a second on each connection, as over a line that is long or full.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// Pieces a second: small enough that a short command is not late.
const PIECES: usize = 20;

/// The way, for as long as this lives.
#[derive(Debug)]
pub struct SlowWay {
    socket: PathBuf,
    accepting: JoinHandle<()>,
}

impl SlowWay {
    /// Listens in `directory`, before the Redis at `upstream`.
    pub fn before(upstream: &Path, directory: &Path, bytes_per_second: usize) -> Self {
        let socket = directory.join("slow-way.sock");
        let listener = UnixListener::bind(&socket).expect("a socket before Redis");
        let accepting = tokio::spawn({
            let upstream = upstream.to_owned();
            async move {
                while let Ok((client, _)) = listener.accept().await {
                    tokio::spawn(pass(client, upstream.clone(), bytes_per_second / PIECES));
                }
            }
        });
        Self { socket, accepting }
    }

    /// The `REDIS_URL` through it.
    pub fn url(&self) -> String {
        format!("unix://{}", self.socket.display())
    }
}

impl Drop for SlowWay {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn pass(client: UnixStream, upstream: PathBuf, piece_bytes: usize) {
    let Ok(redis) = UnixStream::connect(&upstream).await else { return };
    let (mut requests, mut answers) = client.into_split();
    let (mut replies, mut commands) = redis.into_split();
    let mut piece = vec![0; piece_bytes];
    let there = async {
        while let Ok(bytes @ 1..) = requests.read(&mut piece).await {
            if commands.write_all(&piece[..bytes]).await.is_err() {
                return;
            }
            sleep(Duration::from_secs(1) / PIECES as u32).await;
        }
    };
    tokio::select! {
        () = there => {}
        _ = copy(&mut replies, &mut answers) => {}
    }
}
