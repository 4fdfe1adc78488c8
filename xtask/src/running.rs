//! Test binaries that run now: what is said of them, and how they are ended.

use std::collections::BTreeMap;
use std::io;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
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

    /// Starts a child, the leader of a process group.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub(crate) fn begin(&self, command: &mut Command, name: &str) -> io::Result<Child> {
        // Under the lock: whoever ends all, ends this one as well, or it never begins.
        self.with(|all| {
            let child = command.spawn()?;
            all.insert(key(&child), OneRunning { name: name.to_owned(), began: Instant::now() });
            Ok(child)
        })
    }

    /// Waits for a child, and ends what it has left behind.
    ///
    /// # Errors
    ///
    /// If it cannot be waited for.
    pub(crate) fn wait(&self, mut child: Child) -> io::Result<ExitStatus> {
        let pid = key(&child);
        if let Some(pid) = Pid::from_raw(pid) {
            // Until it is reaped, nothing else has its number.
            waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)?;
        }
        self.with(|all| {
            kill(pid);
            all.remove(&pid);
            child.wait()
        })
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
            let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
            let [Ok(mut interrupt), Ok(mut terminate), Ok(mut hangup)] = kinds.map(signal) else {
                return;
            };
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                _ = hangup.recv() => {}
            }
            // The lock is kept, so that nothing begins any more.
            self.with(|all| {
                all.keys().for_each(|pid| kill(*pid));
                std::process::exit(INTERRUPTED)
            })
        });
    }
}

fn key(child: &Child) -> i32 {
    i32::try_from(child.id()).unwrap_or_default()
}

/// Ends a process group. Those that have ended meanwhile are no error.
fn kill(pid: i32) {
    if let Some(pid) = Pid::from_raw(pid) {
        kill_process_group(pid, Signal::KILL).ok();
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::os::unix::process::CommandExt as _;
    use std::process::Stdio;

    use super::*;

    #[test]
    fn what_takes_too_long_is_ended_with_what_it_started() {
        let running = Running::default();
        let mut shell = Command::new("sh");
        shell.args(["-c", "sleep 600 & wait"]).process_group(0);
        let mut child = running.begin(&mut shell, "sleeper").expect("run sh");
        running.look(Duration::from_secs(60));
        assert!(child.try_wait().expect("look at sh").is_none(), "ended early");
        running.look(Duration::ZERO);
        assert!(!running.wait(child).expect("wait for sh").success());
        assert!(running.with(|all| all.is_empty()));
    }

    #[test]
    fn what_is_left_behind_is_ended_too() {
        let running = Running::default();
        let mut shell = Command::new("sh");
        shell.args(["-c", "sleep 600 & echo $!"]).process_group(0).stdout(Stdio::piped());
        let mut child = running.begin(&mut shell, "parent").expect("run sh");
        let mut said = String::new();
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        output.read_line(&mut said).expect("its child");
        assert!(running.wait(child).expect("wait for sh").success());
        // The pipe closes when the last process that has it open has ended.
        assert_eq!(output.read_line(&mut said).expect("the end"), 0);
    }
}
