//! An attack under way, on a thread of its own that runs only where a core has nothing else to do: in
//! truth the strangers have machines of their own, and what they do there is not what is measured.

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

/// Files that a process of these stories has open beside its connections.
const OTHER_FILES: u64 = 500;

/// How often each status was heard.
pub type Heard = BTreeMap<u16, u64>;

/// Strangers at work. Dropped, they stop at once.
#[derive(Debug)]
pub struct Siege {
    stop: Arc<AtomicBool>,
    heard: Arc<Mutex<Heard>>,
    thread: Option<JoinHandle<()>>,
}

/// As many connections as `wanted`, or as this process may have: the receiver may have as many.
pub fn crowd(wanted: usize) -> usize {
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    wanted.min(usize::try_from(files.saturating_sub(OTHER_FILES)).unwrap_or(usize::MAX))
}

impl Siege {
    /// So many begin, one after the other, and go on until they are told to stop.
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

    /// Ends it; what was heard.
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

/// Puts this thread into the class SCHED_IDLE: whoever wakes up takes its core at once, where one of the
/// lowest priority among the usual ones would have its slice out.
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
        // One timer's tick may be the turn of several.
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
