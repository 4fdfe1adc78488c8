//! Makes webhooks on several threads and writes them in order. Bounded: a thread that is ahead
//! waits. A slow reader, such as vegeta, which reads targets as it sends them, therefore sets the
//! rate and gets fresh webhooks.

use std::io::{self, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use crate::encode::Encoder;
use crate::webhook::Maker;

/// Webhooks that a thread passes on at once. Large enough for a negligible overhead, small enough
/// for fresh webhooks.
const CHUNK_WEBHOOKS: u64 = 64;
/// Chunks that may wait per thread. Another one is being written.
const CHUNKS_AHEAD: usize = 1;

type Chunk = io::Result<Vec<u8>>;

/// Writes webhooks `0..count`. Returns [`io::ErrorKind::BrokenPipe`] if the reader closes its end
/// early, as vegeta does when its time is over.
pub fn write_all(
    maker: &Maker,
    encoder: &Encoder,
    count: u64,
    threads: u64,
    mut out: impl Write,
) -> io::Result<()> {
    thread::scope(|scope| {
        // The receivers live in this closure. If writing fails they are dropped, and the threads
        // end.
        let chunks: Vec<Receiver<Chunk>> = (0..threads)
            .map(|thread| {
                let (sender, receiver) = sync_channel(CHUNKS_AHEAD);
                scope.spawn(move || make_chunks(maker, encoder, count, thread, threads, &sender));
                receiver
            })
            .collect();
        for turn in chunks.iter().cycle() {
            match turn.recv() {
                Ok(chunk) => out.write_all(&chunk?)?,
                // Chunks are dealt in turn. If the next thread has none, all chunks are written.
                Err(_) => break,
            }
        }
        out.flush()
    })
}

fn make_chunks(
    maker: &Maker,
    encoder: &Encoder,
    count: u64,
    thread: u64,
    threads: u64,
    sender: &SyncSender<Chunk>,
) {
    let starts = (thread * CHUNK_WEBHOOKS..count).step_by((threads * CHUNK_WEBHOOKS) as usize);
    for start in starts {
        let mut out = Vec::new();
        let numbers = start..(start + CHUNK_WEBHOOKS).min(count);
        let made = numbers
            .into_iter()
            .try_for_each(|number| encoder.encode(number, &maker.make(number), &mut out));
        if sender.send(made.map(|()| out)).is_err() {
            return;
        }
    }
}
