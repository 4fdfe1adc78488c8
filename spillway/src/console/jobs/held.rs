//! Ids that jobs hold in memory, with a bound over all jobs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::failure::Failure;

/// Bytes of an id that is held, more or less.
pub(in crate::console) const HELD_BYTES: usize = 50;
/// Ids that all jobs of a console hold: some 25 MB. What else they hold counts as the ids of as much memory.
const HELD_MAX: u64 = 500_000;

/// Ids that one job holds, as a part of those that all hold.
pub(super) struct HeldIds {
    all: Arc<AtomicU64>,
    /// Number of ids that it holds; `None` once it has let go of them.
    own: Mutex<Option<u64>>,
}

impl HeldIds {
    /// No ids yet, beside those that `all` counts.
    pub(super) fn new(all: Arc<AtomicU64>) -> Self {
        Self { all, own: Mutex::new(Some(0)) }
    }

    /// Notes that the job holds so many ids by now. Refused beyond the bound, and after the job is over.
    pub(super) fn hold(&self, number: u64) -> Result<(), Failure> {
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(before) = *own else {
            return Err(Failure::Failed("the job is over".to_owned()));
        };
        let more = number.saturating_sub(before);
        if self.all.fetch_add(more, Ordering::AcqRel).saturating_add(more) > HELD_MAX {
            self.all.fetch_sub(more, Ordering::AcqRel);
            let told = "what matches takes more memory than all jobs may hold: give a narrower filter, wait until other jobs are \
                        over, or use the command on a machine";
            return Err(Failure::Failed(told.to_owned()));
        }
        *own = Some(before.saturating_add(more));
        Ok(())
    }

    /// Lets go of all ids.
    pub(super) fn release(&self) {
        let own = self.own.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.all.fetch_sub(own.unwrap_or(0), Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_all_jobs_are_bounded_and_let_go() {
        let all = Arc::new(AtomicU64::new(0));
        let (one, two) = (HeldIds::new(all.clone()), HeldIds::new(all.clone()));
        assert!(one.hold(HELD_MAX - 5).is_ok() && one.hold(HELD_MAX - 3).is_ok());
        assert!(two.hold(3).is_ok() && two.hold(4).is_err());
        one.release();
        one.release();
        assert!(one.hold(1).is_err(), "it is over");
        assert!(two.hold(4).is_ok());
        two.release();
        assert_eq!(all.load(Ordering::Acquire), 0);
    }
}
