//! Phase of a connection: where it is in its requests, and since when.
//!
//! A connection is new, idle, in a request's headers, in a request, or not done with an answer. All but
//! a request have a deadline here (a request keeps its own); a sweep over all connections finds
//! those past it, so that no timer is armed for each request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

const IDLE: u8 = 0;
const HEADERS: u8 = 1;
/// The headers are read, the body perhaps not.
const REQUEST: u8 = 2;
/// The body is read whole: what comes now is the next request's.
const BODY_READ: u8 = 3;
/// It stays so only while the answer can't be written: its reader does not read.
const ANSWERED: u8 = 4;
/// Not a byte has come. It has the time of headers: senders connect to send, and a crowd that only
/// connects would else hold all connections for `IDLE_TIMEOUT`.
const NEW: u8 = 5;

/// Where a connection is, shared with the sweep.
#[derive(Debug)]
pub struct Phase {
    opened: Instant,
    now: AtomicU8,
    /// Milliseconds since `opened`.
    since_ms: AtomicU64,
    is_body_unread: AtomicBool,
    /// Part of the next request came before the answer to this one went out.
    has_read_ahead: AtomicBool,
    kick: Notify,
}

/// Times that connections have.
#[derive(Debug, Clone, Copy)]
pub struct PhaseTimes {
    /// For a request's headers, and for the first byte of a new connection.
    pub headers: Duration,
    /// To be idle after an answer.
    pub idle: Duration,
}

/// What becomes of a connection that the sweep has woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Swept {
    /// It goes on.
    Stays,
    /// It is closed.
    Closed,
    /// Its headers took too long: it is told so, and closed.
    Refused,
}

/// What a request knows about how it came.
#[derive(Debug, Clone)]
pub struct Arrival {
    /// When its first byte was read.
    pub first_byte: Instant,
    /// The connection it came over.
    pub connection: Arc<Phase>,
}

impl Phase {
    /// A connection that was opened now.
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            opened: Instant::now(),
            now: AtomicU8::new(NEW),
            since_ms: AtomicU64::new(0),
            is_body_unread: AtomicBool::new(false),
            has_read_ahead: AtomicBool::new(false),
            kick: Notify::new(),
        })
    }

    /// Bytes were read: the first of a request starts its headers.
    pub fn bytes_arrived(&self) {
        match self.now.load(Ordering::Relaxed) {
            NEW | IDLE | ANSWERED => self.enter(HEADERS),
            BODY_READ => self.has_read_ahead.store(true, Ordering::Relaxed),
            _ => {}
        }
    }

    /// Nothing is there to read: after an answer, the connection is idle, or waits for the rest of
    /// a request whose beginning it has read already.
    pub fn waits_for_bytes(&self) {
        if self.now.load(Ordering::Relaxed) == ANSWERED {
            self.enter(if self.has_read_ahead.load(Ordering::Relaxed) { HEADERS } else { IDLE });
        }
    }

    /// The request's body was read whole.
    pub fn body_is_read(&self) {
        self.now.store(BODY_READ, Ordering::Relaxed);
    }

    /// Whether it was.
    pub fn is_body_read(&self) -> bool {
        self.now.load(Ordering::Relaxed) == BODY_READ
    }

    /// The request was refused before its body was read whole, perhaps.
    pub fn body_may_be_unread(&self) {
        self.is_body_unread.store(true, Ordering::Relaxed);
    }

    /// Wakes the connection if it is past its deadline, or in no request while `close_idle` is set.
    pub fn sweep(&self, times: PhaseTimes, close_idle: bool) {
        let is_between = matches!(self.now.load(Ordering::Relaxed), NEW | IDLE | ANSWERED);
        if self.is_past_deadline(times) || (close_idle && is_between) {
            self.kick.notify_one();
        }
    }

    /// Waits until the sweep wakes it.
    pub async fn swept(&self) {
        self.kick.notified().await;
    }

    /// What becomes of it once the sweep has woken it.
    pub fn after_sweep(&self, times: PhaseTimes, is_closing: bool) -> Swept {
        match self.now.load(Ordering::Relaxed) {
            HEADERS if self.is_past_deadline(times) => Swept::Refused,
            ANSWERED if is_closing || self.is_past_deadline(times) => Swept::Closed,
            NEW | IDLE => Swept::Closed,
            _ => Swept::Stays,
        }
    }

    fn is_past_deadline(&self, times: PhaseTimes) -> bool {
        let time = match self.now.load(Ordering::Relaxed) {
            NEW | HEADERS => times.headers,
            IDLE | ANSWERED => times.idle,
            _ => return false,
        };
        self.since().elapsed() > time
    }

    /// Time since its last change.
    pub fn elapsed(&self) -> Duration {
        self.since().elapsed()
    }

    /// Whether an answer may be lost if it is closed at once.
    pub fn is_body_unread(&self) -> bool {
        self.is_body_unread.load(Ordering::Relaxed)
    }

    fn since(&self) -> Instant {
        self.opened + Duration::from_millis(self.since_ms.load(Ordering::Relaxed))
    }

    fn enter(&self, phase: u8) {
        let since_ms = u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.since_ms.store(since_ms, Ordering::Relaxed);
        self.now.store(phase, Ordering::Relaxed);
    }

    /// The headers are read; returns when their first byte was.
    pub fn begin_request(&self) -> Instant {
        let began = if self.now.load(Ordering::Relaxed) == HEADERS {
            self.since()
        } else {
            // It was in the buffer behind the request before it.
            Instant::now()
        };
        self.is_body_unread.store(false, Ordering::Relaxed);
        self.has_read_ahead.store(false, Ordering::Relaxed);
        self.now.store(REQUEST, Ordering::Relaxed);
        began
    }

    /// The request is answered.
    pub fn answered(&self) {
        self.enter(ANSWERED);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const TIMES: PhaseTimes =
        PhaseTimes { headers: Duration::from_secs(5), idle: Duration::from_secs(75) };

    #[tokio::test(start_paused = true)]
    async fn a_new_connection_has_the_time_of_headers_and_a_used_one_may_be_idle() {
        let phase = Phase::new();
        let is_late_after = async |seconds| {
            advance(Duration::from_secs(seconds)).await;
            phase.is_past_deadline(TIMES)
        };
        assert!(!is_late_after(4).await);
        assert!(is_late_after(2).await, "not a byte has come");
        assert_eq!(phase.after_sweep(TIMES, false), Swept::Closed);
        phase.bytes_arrived();
        assert!(!is_late_after(4).await);
        assert_eq!(phase.after_sweep(TIMES, true), Swept::Stays);
        assert!(is_late_after(2).await, "the headers are not whole");
        assert_eq!(phase.after_sweep(TIMES, false), Swept::Refused);
        phase.begin_request();
        assert!(!is_late_after(100).await, "a request keeps its own deadline");
        assert_eq!(phase.after_sweep(TIMES, true), Swept::Stays);
        phase.answered();
        assert_eq!(phase.after_sweep(TIMES, false), Swept::Stays, "its answer is on the way");
        phase.waits_for_bytes();
        assert!(!is_late_after(70).await, "it is idle");
        assert!(is_late_after(6).await);
        assert_eq!(phase.after_sweep(TIMES, false), Swept::Closed);
    }
}
