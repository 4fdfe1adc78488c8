//! Slots of this machine, shared by all tests of all test binaries that run side by side.
//!
//! A test takes slots by how much it needs: all of them if it measures time, one if it mostly
//! waits. Tests get them first come, first served, so one that needs all is not overtaken for ever.

use std::fs::{File, TryLockError};
use std::thread;
use std::time::Duration;

use crate::binaries;

/// Slots of the machine, which are free again when the value is dropped. Each is a locked file.
#[derive(Debug)]
pub struct Slots {
    _held: Vec<File>,
}

/// Slots of a machine with two cores, for which the suite is made.
const SLOTS: usize = 4;
const POLL: Duration = Duration::from_millis(10);

/// For a test that measures time: waits until no other test runs.
pub fn alone() -> Slots {
    take(SLOTS)
}

/// For a test that loads a core for a while and has limits of time, with a margin: half of the
/// machine.
pub fn half() -> Slots {
    take(SLOTS / 2)
}

/// For a test that needs little.
pub fn shared() -> Slots {
    take(1)
}

fn take(count: usize) -> Slots {
    // Held while this test waits: nobody else takes a slot until it has all of its own.
    let queue = open("queue");
    queue.lock().expect("wait for a turn");
    let mut free: Vec<File> = (0..SLOTS).map(|slot| open(&format!("slot-{slot}"))).collect();
    let mut held = Vec::new();
    loop {
        let mut at = 0;
        while at < free.len() && held.len() < count {
            match free[at].try_lock() {
                Ok(()) => held.push(free.swap_remove(at)),
                Err(TryLockError::WouldBlock) => at += 1,
                Err(TryLockError::Error(error)) => panic!("cannot lock a slot: {error}"),
            }
        }
        if held.len() == count {
            return Slots { _held: held };
        }
        thread::sleep(POLL);
    }
}

fn open(name: &str) -> File {
    let path = binaries::directory().join(format!("stories-{name}.lock"));
    File::options()
        .create(true)
        .append(true)
        .open(&path)
        .unwrap_or_else(|error| panic!("cannot open {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_test_that_needs_all_slots_waits_and_is_not_overtaken() {
        let first = shared();
        let (tell, told) = mpsc::sync_channel(2);
        thread::scope(|scope| {
            let whole = tell.clone();
            scope.spawn(move || {
                let _slots = alone();
                whole.send("alone").expect("listened to");
            });
            thread::sleep(10 * POLL);
            scope.spawn(move || {
                let _slots = shared();
                tell.send("shared").expect("listened to");
            });
            thread::sleep(10 * POLL);
            assert!(told.try_recv().is_err(), "a slot was given twice");
            drop(first);
            assert_eq!(told.recv(), Ok("alone"));
            assert_eq!(told.recv(), Ok("shared"));
        });
    }
}
