//! Phase of a connection within its requests, and the time since it began.
//!
//! A connection is new, idle, in a request's headers, in a request, or not done with an answer. All
//! phases except a request have a deadline here; a request keeps its own. A sweep over all
//! connections finds those past their deadline, so no timer is armed for each request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

const IDLE: u8 = 0;
const HEADERS: u8 = 1;
/// The headers are read. The body may not be.
const REQUEST: u8 = 2;
/// The whole body is read. Bytes that come now belong to the next request.
const BODY_READ: u8 = 3;
/// The answer is made. The phase lasts only while the answer can't be written, because its reader
/// does not read.
const ANSWERED: u8 = 4;
/// No byte has come. The deadline is that of headers: senders connect to send. Otherwise clients
/// that only connect could hold all connections for `IDLE_TIMEOUT`.
const NEW: u8 = 5;

/// Phase of a connection, shared with the sweep.
#[derive(Debug)]
pub struct Phase {
    opened: Instant,
    now: AtomicU8,
    /// Milliseconds since `opened`.
    since_ms: AtomicU64,
    is_body_unread: AtomicBool,
    /// Set when part of the next request comes before the answer to this one goes out.
    has_read_ahead: AtomicBool,
    kick: Notify,
}

/// Time limits of connections.
#[derive(Debug, Clone, Copy)]
pub struct PhaseTimes {
    /// Time for the headers of a request, and for the first byte of a new connection.
    pub headers: Duration,
    /// Time for which a connection may be idle after an answer.
    pub idle: Duration,
}

/// Fate of a connection that the sweep has woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Swept {
    /// The connection goes on.
    Stays,
    /// The connection is closed.
    Closed,
    /// The headers took too long. The connection is answered 408 and closed.
    Refused,
}

/// Connection and time of arrival of a request.
#[derive(Debug, Clone)]
pub struct RequestArrival {
    /// Time at which its first byte was read.
    pub first_byte: Instant,
    /// Connection of the request.
    pub connection: Arc<Phase>,
}

impl Phase {
    /// Phase of a connection that was opened now.
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

    /// Notes that bytes were read. The first byte of a request starts its headers.
    pub fn bytes_arrived(&self) {
        match self.now.load(Ordering::Relaxed) {
            NEW | IDLE | ANSWERED => {
                self.enter(HEADERS);
            }
            BODY_READ => self.has_read_ahead.store(true, Ordering::Relaxed),
            _ => {}
        }
    }

    /// Notes that there is nothing to read. After an answer, the connection is idle from that answer
    /// on, or waits for the rest of a request whose beginning it has already read.
    pub fn waits_for_bytes(&self) {
        if self.now.load(Ordering::Relaxed) == ANSWERED {
            if self.has_read_ahead.load(Ordering::Relaxed) {
                self.enter(HEADERS);
            } else {
                self.now.store(IDLE, Ordering::Relaxed);
            }
        }
    }

    /// Notes that the whole body of the request was read.
    pub fn note_body_read(&self) {
        self.now.store(BODY_READ, Ordering::Relaxed);
    }

    /// Returns true if the whole body was read, and the request is not answered yet.
    pub fn is_body_read(&self) -> bool {
        self.now.load(Ordering::Relaxed) == BODY_READ
    }

    /// Notes that the request is refused although its body may not be read.
    pub fn note_body_unread(&self) {
        self.is_body_unread.store(true, Ordering::Relaxed);
    }

    /// Wakes the connection if it is past its deadline. With `close_idle`, also wakes it between
    /// requests.
    pub fn sweep(&self, times: PhaseTimes, close_idle: bool) {
        let is_between = matches!(self.now.load(Ordering::Relaxed), NEW | IDLE | ANSWERED);
        if self.is_past_deadline(times) || (close_idle && is_between) {
            self.kick.notify_one();
        }
    }

    /// Wakes the connection as if it were past its deadline. In a TLS handshake, it ends.
    pub fn cut_off(&self) {
        self.kick.notify_one();
    }

    /// Waits until the sweep wakes it.
    pub async fn swept(&self) {
        self.kick.notified().await;
    }

    /// Decides the fate of the connection after the sweep has woken it.
    pub fn after_sweep(&self, times: PhaseTimes, is_shutdown: bool) -> Swept {
        match self.now.load(Ordering::Relaxed) {
            HEADERS if self.is_past_deadline(times) => Swept::Refused,
            ANSWERED if is_shutdown || self.is_past_deadline(times) => Swept::Closed,
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

    /// Time since the phase began.
    pub fn elapsed(&self) -> Duration {
        self.since().elapsed()
    }

    /// Returns true if an answer may be lost when the connection is closed at once.
    pub fn is_body_unread(&self) -> bool {
        self.is_body_unread.load(Ordering::Relaxed)
    }

    fn since(&self) -> Instant {
        self.opened + Duration::from_millis(self.since_ms.load(Ordering::Relaxed))
    }

    /// Enters a phase. Returns the time.
    fn enter(&self, phase: u8) -> Instant {
        let now = Instant::now();
        let since_ms = u64::try_from((now - self.opened).as_millis()).unwrap_or(u64::MAX);
        self.since_ms.store(since_ms, Ordering::Relaxed);
        self.now.store(phase, Ordering::Relaxed);
        now
    }

    /// Notes that the headers are read. Returns when their first byte was read.
    pub fn begin_request(&self) -> Instant {
        let began = if self.now.load(Ordering::Relaxed) == HEADERS {
            self.since()
        } else {
            // Its first byte came into the buffer together with the request before it.
            Instant::now()
        };
        self.is_body_unread.store(false, Ordering::Relaxed);
        self.has_read_ahead.store(false, Ordering::Relaxed);
        self.now.store(REQUEST, Ordering::Relaxed);
        began
    }

    /// Notes that the request is answered. Returns the time.
    pub fn answered(&self) -> Instant {
        self.enter(ANSWERED)
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
