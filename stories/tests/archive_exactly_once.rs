//! Exactly once into an archive under load, while archiver, Redis and the server of the archive are killed, and
//! while a leader sleeps through a takeover.
//!
//! `make endure` uses at least a million webhooks and forty kills.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use stories::archive::ArchiveDirectory;
use stories::cell::{Cell, Settings};
use stories::exactly_once::check;
use stories::ledger::{Ledger, Outcome};
use stories::load::Load;
use stories::redis_server::RedisServer;
use stories::report::say;
use stories::s3_server::S3Server;
use stories::seed::{chance, seed};
use stories::service::Service;
use stories::size::size;
use stories::until::until;
use tokio::time::sleep;

/// Time limit for new objects after any kill, on a busy machine.
const BACK_WITHIN: Duration = Duration::from_secs(120);
/// Time limit for all stored webhooks to be archived.
const DRAINED_WITHIN: Duration = Duration::from_secs(180);
/// Number of webhooks up to which the load is slowed down, so that the kills meet it running.
const PACED_MAX: usize = 100_000;
/// Small objects, so that a kill meets many puts.
const SMALL: [(&str, &str); 2] = [("ARCHIVE_OBJECT_SIZE", "64KiB"), ("ARCHIVE_MAX_DELAY", "1s")];
const BUCKET: &str = "webhooks";

#[derive(Clone, Copy, Debug)]
enum Victim {
    Archiver,
    Redis,
    Store,
}

struct Parts {
    archiver: Service,
    redis: RedisServer,
    store: Option<S3Server>,
    archive: ArchiveDirectory,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_webhook_is_in_the_directory_once_whatever_is_killed() {
    let cell = Cell::busy();
    let archive = ArchiveDirectory::new(&cell.directory().join("archive"));
    let url = archive.url();
    play(&cell, ("archive, directory", 301), &url, (archive, None)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_webhook_is_in_the_bucket_once_whatever_is_killed() {
    let cell = Cell::busy();
    let store = S3Server::start(cell.directory(), BUCKET);
    store.ready().await;
    let archive = ArchiveDirectory::new(&store.bucket(BUCKET).join("cells"));
    let url = format!("s3://{BUCKET}/cells");
    play(&cell, ("archive, bucket", 302), &url, (archive, Some(store))).await;
}

async fn play(
    cell: &Cell,
    (story, number): (&str, u64),
    url: &str,
    (archive, store): (ArchiveDirectory, Option<S3Server>),
) {
    let seed = seed(story, number);
    let victims = match store {
        Some(_) => vec![Victim::Archiver, Victim::Redis, Victim::Store],
        None => vec![Victim::Archiver, Victim::Redis],
    };
    let (count, kills) = (size(6_000, 1_000_000), size(victims.len(), 40));
    let reached = store.as_ref().map(reach).unwrap_or_default();
    let redis = cell.redis(&[]).await;
    let receiver = cell.receiver(&[]).await;
    let archiver = cell.archiver(url, &settings(&reached));
    archiver.ready().await;
    let mut parts = Parts { archiver, redis, store, archive };
    let ledger = Arc::new(Ledger::default());
    let pause = if count > PACED_MAX { Duration::ZERO } else { Duration::from_millis(60) };
    let load = Load { resources: 500, pause, ..Load::steady(seed) };
    let running = load.start(receiver.address(), &ledger);
    let began = Instant::now();
    parts.kill_all(&victims, kills, chance(seed, 1 << 32)).await;
    until("enough is stored", DRAINED_WITHIN * 10, async || ledger.stored_count() >= count).await;
    running.stop().await;
    parts.drained().await;
    let found = check(&ledger, parts.archive.arrivals(), &HashSet::new());
    found.print(story);
    let unknown = ledger.count(Outcome::Later) + ledger.count(Outcome::Unanswered);
    let objects = parts.archive.objects().len();
    say(&format!(
        "{story}: {kills} kills in {:?}, {unknown} attempts of unknown fate, {objects} objects",
        began.elapsed()
    ));
    found.expect_exact();
    let verified = parts.archive.verified(cell, url, &settings(&reached)).await;
    assert_eq!(verified, found.records as u64, "the command and the script read the same");
}

/// Settings with which the store is reached, with lives of their own.
fn reach(store: &S3Server) -> Vec<(String, String)> {
    let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    store.settings().into_iter().map(owned).collect()
}

fn settings(reached: &[(String, String)]) -> Vec<(&str, &str)> {
    let reached = reached.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    SMALL.into_iter().chain(reached).collect()
}

impl Parts {
    async fn kill_all(&mut self, each: &[Victim], kills: usize, mut chance: StdRng) {
        let mut victims = each.repeat(kills.div_ceil(each.len()));
        victims.truncate(kills);
        victims.shuffle(&mut chance);
        for (number, victim) in victims.into_iter().enumerate() {
            self.progress().await;
            sleep(Duration::from_millis(chance.random_range(0..1500))).await;
            let objects = self.archive.objects().len();
            say(&format!("archive, kills: {number}: {victim:?} at {objects} objects"));
            self.kill(victim).await;
        }
        self.progress().await;
    }

    async fn kill(&mut self, victim: Victim) {
        match victim {
            Victim::Archiver => {
                self.archiver.kill9();
                self.archiver.restart();
            }
            Victim::Redis => {
                self.redis.kill9();
                self.redis.restart();
                self.redis.ready().await;
            }
            Victim::Store => {
                let store = self.store.as_mut().expect("there is a server to kill");
                store.kill9();
                store.restart();
            }
        }
    }

    /// Waits until more objects appear, so that the next kill hits a working process.
    async fn progress(&self) {
        let before = self.archive.objects().len();
        until("objects appear", BACK_WITHIN, async || self.archive.objects().len() >= before + 3)
            .await;
    }

    /// Waits until the queue is empty: all of it is settled, and so in the archive.
    async fn drained(&self) {
        until("the queue is empty", DRAINED_WITHIN, async || {
            self.redis.stream_len("{spillway}:in").await == 0
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_archiver_that_slept_through_a_takeover_adds_nothing_twice() {
    let seed = seed("archive, takeover", 303);
    let cell = Cell::busy();
    let archive = ArchiveDirectory::new(&cell.directory().join("archive"));
    let redis = cell.redis(&[]).await;
    let receiver = cell.receiver(&[]).await;
    let small: Settings<'_> = &SMALL;
    let first = cell.archiver(&archive.url(), small);
    first.ready().await;
    let second = cell.archiver(&archive.url(), small);
    second.unready("standby").await;
    let ledger = Arc::new(Ledger::default());
    let load = Load { pause: Duration::from_millis(60), ..Load::steady(seed) };
    let running = load.start(receiver.address(), &ledger);
    let more = async |count: usize| {
        let before = archive.objects().len();
        until("objects appear", BACK_WITHIN, async || archive.objects().len() >= before + count)
            .await;
    };
    more(3).await;
    first.sigstop();
    until("the second leads", BACK_WITHIN, async || second.is_leader().await).await;
    more(3).await;
    first.sigcont();
    first.unready("standby").await;
    more(3).await;
    running.stop().await;
    let drained = async || redis.stream_len("{spillway}:in").await == 0;
    until("the queue is empty", DRAINED_WITHIN, drained).await;
    let found = check(&ledger, archive.arrivals(), &HashSet::new());
    found.print("archive, takeover");
    found.expect_exact();
    let verified = archive.verified(&cell, &archive.url(), &[]).await;
    assert_eq!(verified, found.records as u64);
}
