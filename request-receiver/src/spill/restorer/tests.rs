//! Deletion of what is restored, beside the task that the watchdog asks.

use std::path::PathBuf;

use spillway_process::Background;

use super::*;
use crate::settings::SpillSettings;
use crate::store::log::OverflowLog;

fn segments(settings: &SpillSettings) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(&settings.directory).expect("it is there");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths.filter(|path| path.extension().is_some_and(|ending| ending == "spill")).collect()
}

#[tokio::test]
async fn the_task_that_the_watchdog_asks_deletes_nothing_itself() {
    let directory = tempfile::tempdir().expect("a directory");
    let settings = SpillSettings { directory: directory.path().to_owned(), bytes_max: 1 << 16 };
    let (spill, log_id) = SpillChannel::open(&settings, &Background::default()).expect("it opens");
    for _ in 0..3 {
        spill.write(vec![0; 5000], 1).await.expect("there is room");
    }
    let restored = segments(&settings);
    assert_eq!(restored.len(), 3);
    let gate = Gate::new(true, Duration::from_secs(3));
    let looks = RedisLooks::new(gate.clone());
    let redis = Redis::new("redis://127.0.0.1:1", "spillway:").expect("a good URL");
    let mut restorer = Restorer::new(spill.clone(), &gate, &looks, log_id, redis);
    gate.on(StoreEvent::Queue { is_usable: true });
    gate.on(StoreEvent::ClaimOurs { is_new: false });
    gate.on(StoreEvent::Fenced);
    let chunk = restorer.progress.next(&spill, 0, RestorePace::default()).await;
    let chunk = chunk.expect("it is read");
    assert_eq!(chunk.records.len(), 3);
    restorer.progress.done = Some(chunk);
    restorer.finish();
    assert_eq!(gate.mode(), StoreMode::Direct);
    // Nothing else has run on this thread since.
    assert!(restored.iter().all(|path| path.exists()));
    let deleted = async {
        while restored.iter().any(|path| path.exists()) {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(20), deleted).await.expect("they are deleted all the same");
    assert!(!spill.holds_any());
}
