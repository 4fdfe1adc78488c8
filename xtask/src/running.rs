//! Test binaries that run now: what is said of them, and how they are ended.

use std::collections::BTreeMap;
use std::process::Child;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::signal::unix::{SignalKind, signal};

/// Time between two lines that name what still runs.
const SAID_EVERY: Duration = Duration::from_secs(60);
/// Exit status of a shell whose command was interrupted.
const INTERRUPTED: i32 = 130;

/// Test binaries that run now, each the leader of a process group.
#[derive(Debug, Clone, Default)]
pub(crate) struct Running(Arc<Mutex<BTreeMap<i32, OneRunning>>>);

#[derive(Debug)]
struct OneRunning {
    name: String,
    began: Instant,
}

impl Running {
    /// Starts to watch: names what runs once a minute, ends what runs for longer than `limit`, and
    /// everything when this process is told to stop.
    pub(crate) fn watched(limit: Duration) -> Self {
        let running = Self::default();
        let told = running.clone();
        thread::spawn(move || told.end_on_signals());
        let watched = running.clone();
        thread::spawn(move || {
            loop {
                thread::sleep(SAID_EVERY);
                watched.look(limit);
            }
        });
        running
    }

    /// Adds a child that has just begun. Returns its key for [`Self::end`].
    pub(crate) fn begin(&self, child: &Child, name: &str) -> i32 {
        let pid = i32::try_from(child.id()).unwrap_or_default();
        self.with(|all| {
            all.insert(pid, OneRunning { name: name.to_owned(), began: Instant::now() })
        });
        pid
    }

    /// Removes a child that has ended.
    pub(crate) fn end(&self, pid: i32) {
        self.with(|all| all.remove(&pid));
    }

    fn with<T>(&self, change: impl FnOnce(&mut BTreeMap<i32, OneRunning>) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn look(&self, limit: Duration) {
        self.with(|all| {
            let said = all.values().map(|one| format!("{} {:.0?}", one.name, one.began.elapsed()));
            let said: Vec<String> = said.collect();
            if !said.is_empty() {
                eprintln!("xtask: running: {}", said.join(", "));
            }
            for (pid, one) in all.iter().filter(|(_, one)| one.began.elapsed() > limit) {
                eprintln!("xtask: {} has not ended within {limit:?}, and is killed", one.name);
                kill(*pid);
            }
        });
    }

    fn end_on_signals(&self) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let Ok(runtime) = runtime else { return };
        runtime.block_on(async {
            let signals = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()));
            let (Ok(mut interrupt), Ok(mut terminate)) = signals else { return };
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            self.with(|all| all.keys().for_each(|pid| kill(*pid)));
            std::process::exit(INTERRUPTED);
        });
    }
}

/// Ends a process group. Those that have ended meanwhile are no error.
fn kill(pid: i32) {
    if let Some(pid) = Pid::from_raw(pid) {
        kill_process_group(pid, Signal::KILL).ok();
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt as _;
    use std::process::Command;

    use super::*;

    #[test]
    fn what_takes_too_long_is_ended_with_what_it_started() {
        let running = Running::default();
        let mut shell = Command::new("sh");
        let mut child =
            shell.args(["-c", "sleep 600 & wait"]).process_group(0).spawn().expect("run sh");
        let key = running.begin(&child, "sleeper");
        running.look(Duration::from_secs(60));
        assert!(child.try_wait().expect("look at sh").is_none(), "ended early");
        running.look(Duration::ZERO);
        assert!(!child.wait().expect("wait for sh").success());
        running.end(key);
        assert!(running.with(|all| all.is_empty()));
    }
}
