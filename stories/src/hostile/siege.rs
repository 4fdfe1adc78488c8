//! An attack under way, on a separate thread that runs only when a core is otherwise idle. Real
//! attackers have their own machines, whose work is not part of the measurement.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Resource, getrlimit};
use rustix::thread::gettid;
use tokio::task::JoinSet;

use super::attack::Attack;

/// Files that a test process has open in addition to its connections.
const OTHER_FILES: u64 = 500;

/// Number of answers by status.
pub type Heard = BTreeMap<u16, u64>;

/// A running attack. Dropping it stops the attack at once.
#[derive(Debug)]
pub struct Siege {
    stop: Arc<AtomicBool>,
    heard: Arc<Mutex<Heard>>,
    thread: Option<JoinHandle<()>>,
}

/// Number of connections: `wanted`, or the limit of this process, which is also that of the
/// receiver.
pub fn crowd(wanted: usize) -> usize {
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    wanted.min(usize::try_from(files.saturating_sub(OTHER_FILES)).unwrap_or(usize::MAX))
}

impl Siege {
    /// Starts `strangers` attackers one after the other. They continue until the attack is stopped.
    pub fn begin(attack: Attack, strangers: usize, address: SocketAddr) -> Self {
        let (stop, heard) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let thread = std::thread::spawn({
            let (stop, heard) = (Arc::clone(&stop), Arc::clone(&heard));
            move || {
                give_way();
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                let runtime = runtime.expect("a runtime");
                runtime.block_on(besiege(attack, strangers, address, &stop, &heard));
            }
        });
        Self { stop, heard, thread: Some(thread) }
    }

    /// True if an attacker has been answered.
    pub fn is_answered(&self) -> bool {
        !self.heard.lock().expect("nobody panicked while hearing").is_empty()
    }

    /// Stops the attack and returns the answers.
    pub fn end(mut self) -> Heard {
        self.join();
        std::mem::take(&mut *self.heard.lock().expect("nobody panicked while hearing"))
    }

    fn join(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(ended.is_none_or(|ended| ended.is_ok()), "an attack panicked");
    }
}

impl Drop for Siege {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.join();
        }
    }
}

/// Puts this thread into the scheduling class SCHED_IDLE. Other threads that wake up preempt it at
/// once, while a normal thread of lowest priority would finish its time slice.
fn give_way() {
    let thread = gettid().as_raw_nonzero().to_string();
    let status = Command::new("chrt").args(["--idle", "--pid", "0", &thread]).status();
    assert!(
        status.is_ok_and(|status| status.success()),
        "chrt (util-linux) is missing, or refuses"
    );
}

async fn besiege(
    attack: Attack,
    strangers: usize,
    address: SocketAddr,
    stop: &AtomicBool,
    heard: &Arc<Mutex<Heard>>,
) {
    let mut tasks = JoinSet::new();
    let began = tokio::time::Instant::now();
    for place in 0..strangers {
        let heard = Arc::clone(heard);
        tasks.spawn(attack.go_on(address, place, move |status| {
            *heard.lock().expect("nobody panicked while hearing").entry(status).or_default() += 1;
        }));
        // One timer tick may start several attackers.
        tokio::time::sleep_until(began + attack.apart(strangers) * place as u32).await;
    }
    while !stop.load(Ordering::Relaxed) {
        tokio::time::sleep(Duration::from_millis(10)).await;
        while let Some(ended) = tasks.try_join_next() {
            ended.expect("a stranger does not panic");
        }
    }
    tasks.shutdown().await;
}
