//! Watch over calls into librdkafka that do not return. Not all of its calls keep their time limit.
//! A call that waits for a group's coordinator can wait for ever (librdkafka's issues 5456 and
//! 5511).
//!
//! Judged by looks at regular intervals, without a clock: a process that was stopped for a while
//! has missed looks, not calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Looks after which a call is reported.
const SLOW: u32 = 10;
/// Looks after which a call is given up: one and a half times what the longest may take.
const STUCK: u32 = 45;
const _: () = assert!(SLOW < STUCK, "a slow call is shown before it is given up");

/// Calls of one producer after the other, made by one thread.
#[derive(Debug, Clone, Default)]
pub(crate) struct Calls {
    /// Counts starts and ends: odd while a call is under way.
    steps: Arc<AtomicU64>,
}

/// Call under way. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Entered {
    calls: Calls,
    is_outermost: bool,
}

impl Calls {
    /// Starts a call. A call within another is part of that one.
    pub(crate) fn enter(&self) -> Entered {
        let is_outermost = !is_call(self.steps.load(Ordering::Relaxed));
        if is_outermost {
            self.steps.fetch_add(1, Ordering::Relaxed);
        }
        Entered { calls: self.clone(), is_outermost }
    }

    /// Number of calls that have returned.
    #[cfg(test)]
    pub(crate) fn returned(&self) -> u64 {
        self.steps.load(Ordering::Relaxed) / 2
    }

    /// Returns when a call does not return. Calls `tell` once a second for a call that takes long,
    /// with the time that it has taken so far.
    pub(crate) async fn stuck(&self, mut tell: impl FnMut(Duration)) {
        let mut last = 0;
        let mut looks = 0;
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let step = self.steps.load(Ordering::Relaxed);
            looks = if step == last && is_call(step) { looks + 1 } else { 0 };
            last = step;
            if looks >= STUCK {
                return;
            }
            if looks >= SLOW {
                tell(LOOK_EVERY * looks);
            }
        }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        if self.is_outermost {
            self.calls.steps.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn is_call(step: u64) -> bool {
    step % 2 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_call_that_does_not_come_back_is_told_and_then_given_up() {
        let calls = Calls::default();
        let entered = calls.enter();
        drop(calls.enter());
        let mut told = Vec::new();
        calls.stuck(|time| told.push(time)).await;
        assert_eq!(told.first(), Some(&(LOOK_EVERY * SLOW)));
        assert_eq!(told.last(), Some(&(LOOK_EVERY * (STUCK - 1))));
        drop(entered);
        assert!(!is_call(calls.steps.load(Ordering::Relaxed)));
    }

    #[tokio::test(start_paused = true)]
    async fn calls_that_come_back_are_never_given_up_however_many() {
        let calls = Calls::default();
        let mut told = 0;
        let looked = async {
            for _ in 0..STUCK * 2 {
                let _call = calls.enter();
                tokio::time::sleep(LOOK_EVERY.mul_f32(1.5)).await;
            }
        };
        tokio::select! {
            () = calls.stuck(|_| told += 1) => panic!("given up"),
            () = looked => {}
        }
        tokio::select! {
            () = calls.stuck(|_| told += 1) => panic!("given up, and nothing was under way"),
            () = tokio::time::sleep(LOOK_EVERY * STUCK * 2) => {}
        }
        assert_eq!(told, 0);
    }
}
