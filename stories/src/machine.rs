//! Slots of this machine, shared by the tests of all test binaries of one target directory that run
//! side by side.
//!
//! A test takes slots by how much it needs: all of them if it measures time, two of them if it loads
//! a core or has limits of time, one if it waits most of the time. Whoever waits for several slots is
//! not overtaken. Tests that start nothing take none. The summary of the suite has what each test
//! held, and the processor time that it took.

use std::fs::{File, TryLockError};
use std::io::{Read as _, Seek as _, Write as _};
use std::thread;
use std::time::{Duration, Instant};

use crate::binaries::{directory, lock_file};
use crate::report::say;

/// Slots of the machine, which are free again when the value is dropped. Each is a locked file.
#[derive(Debug)]
pub struct Slots {
    held: Vec<File>,
    since: Instant,
    processor_before: f64,
}

/// Slots of a machine with two cores, for which the suite is made: with seven, three quarters of their
/// time is used. `xtask/src/slots.rs` has the number, too.
const SLOTS: usize = 7;
/// Slots of a test that loads a core.
const BUSY: usize = 2;
const POLL: Duration = Duration::from_millis(10);
/// Time between two lines that say for whom a test waits.
const SAID_EVERY: Duration = Duration::from_secs(120);

/// For a test that measures time: waits until no other test holds a slot.
pub fn alone() -> Slots {
    take(SLOTS, "")
}

/// For a test that loads a core for a while, or whose limits of time could break beside six others.
pub fn busy() -> Slots {
    take(BUSY, "")
}

/// For a test that waits most of the time.
pub fn shared() -> Slots {
    take(1, "")
}

/// Takes `count` slots. The names of their files begin with `prefix`.
fn take(count: usize, prefix: &str) -> Slots {
    // Held while this test waits: nobody else takes a slot until it has all of its own.
    let queue = lock_file(&format!("{prefix}queue"));
    queue.lock().expect("wait for a turn");
    let mut free: Vec<File> =
        (0..SLOTS).map(|slot| lock_file(&format!("{prefix}slot-{slot}"))).collect();
    let mut held = Vec::new();
    let mut said = Instant::now();
    loop {
        let mut at = 0;
        while at < free.len() && held.len() < count {
            match free[at].try_lock() {
                Ok(()) => held.push(sign(free.swap_remove(at))),
                Err(TryLockError::WouldBlock) => at += 1,
                Err(TryLockError::Error(error)) => panic!("cannot lock a slot: {error}"),
            }
        }
        if held.len() == count {
            return Slots { held, since: Instant::now(), processor_before: processor_seconds() };
        }
        if said.elapsed() > SAID_EVERY {
            said = Instant::now();
            let holders: Vec<String> = free.iter_mut().map(holder).collect();
            say(&format!("waits for slots of this machine, held by {}", holders.join(", ")));
        }
        thread::sleep(POLL);
    }
}

impl Slots {
    /// Gives back all slots but those of a busy test, once a test measures no more time.
    pub fn stop_measuring(&mut self) {
        self.note();
        self.held.truncate(BUSY);
        self.since = Instant::now();
        self.processor_before = processor_seconds();
    }

    /// Notes for how long they were held, for the summary of the whole suite.
    fn note(&self) {
        let path = directory().join("stories-slots.log");
        let seconds = self.since.elapsed().as_secs_f64();
        // Includes tests of the same process that ran beside it.
        let processor = processor_seconds() - self.processor_before;
        let held = self.held.len();
        let line = format!("{held} {seconds:.1} {processor:.1} {}\n", own_name());
        let log = File::options().create(true).append(true).open(path);
        log.and_then(|mut log| log.write_all(line.as_bytes())).ok();
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        self.note();
    }
}

/// Processor time of this process and of those that it started and that ended, in seconds, from
/// `/proc/self/stat` (proc(5): utime, stime, cutime and cstime, in hundredths).
fn processor_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let times = after_name.split_whitespace().skip(11).take(4);
    times.filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}

fn own_name() -> String {
    thread::current().name().unwrap_or_default().to_owned()
}

/// Writes who holds a slot into its file.
fn sign(mut slot: File) -> File {
    let text = format!("{} of process {}", own_name(), std::process::id());
    // Only for those who wait and wonder.
    slot.set_len(0)
        .and_then(|()| slot.rewind())
        .and_then(|()| slot.write_all(text.as_bytes()))
        .ok();
    slot
}

fn holder(slot: &mut File) -> String {
    let mut text = String::new();
    slot.rewind().and_then(|()| slot.read_to_string(&mut text)).ok();
    text
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn processor_time_is_what_was_computed() {
        let (began, before) = (Instant::now(), processor_seconds());
        while began.elapsed() < Duration::from_secs(10) && processor_seconds() < before + 0.05 {}
        let spent = processor_seconds() - before;
        assert!(spent >= 0.05, "{spent}");
    }

    #[test]
    fn a_test_that_needs_all_slots_waits_and_is_not_overtaken() {
        let prefix = format!("tried-by-{}-", std::process::id());
        let first = take(1, &prefix);
        let (tell, told) = mpsc::sync_channel(2);
        thread::scope(|scope| {
            let whole = tell.clone();
            let all = &prefix;
            scope.spawn(move || {
                let _slots = take(SLOTS, all);
                whole.send("alone").expect("listened to");
            });
            // The other one begins to wait only after this one has: it holds the queue.
            let queue = lock_file(&format!("{prefix}queue"));
            while queue.try_lock().is_ok_and(|()| queue.unlock().is_ok()) {
                thread::sleep(POLL);
            }
            let one = &prefix;
            scope.spawn(move || {
                let _slots = take(1, one);
                tell.send("shared").expect("listened to");
            });
            thread::sleep(10 * POLL);
            assert!(told.try_recv().is_err(), "a slot was given twice");
            drop(first);
            assert_eq!(told.recv(), Ok("alone"));
            assert_eq!(told.recv(), Ok("shared"));
        });
        let files = (0..SLOTS).map(|slot| format!("slot-{slot}")).chain(["queue".to_owned()]);
        for file in files {
            let path = directory().join(format!("stories-{prefix}{file}.lock"));
            fs::remove_file(path).expect("remove the lock");
        }
    }
}
