//! A webhook's retry time survives a restart and a kill, and does not depend on the leader's clock.

use std::sync::Arc;
use std::time::{Duration, Instant};

use stories::cell::{Cell, Settings};
use stories::clock::Clock;
use stories::endurance::crowd::Crowd;
use stories::endurance::record::Record;
use stories::endurance::sender::Sender;
use stories::endurance::sink::{Reply, Sink};
use stories::redis_server::RedisServer;
use stories::report::say;
use stories::service::Service;
use tokio::time::sleep;

const DEAD: &str = "{spillway}:http:dead";
const SOON: Duration = Duration::from_secs(60);
const TOPIC: &str = "products/update";
const RETRY_FOR: Duration = Duration::from_secs(15);
const RETRY_LONGEST: Duration = Duration::from_secs(1);
/// Added to the wait for an attempt: its answer, its settlement, and a busy machine.
const SLACK: Duration = Duration::from_secs(1);

/// Two shops: all webhooks of the first are delivered, none of the second.
struct Shops {
    cell: Cell,
    redis: RedisServer,
    crowd: Crowd,
    sender: Sender,
    sink: Sink,
    _receiver: Service,
}

impl Shops {
    async fn start() -> Self {
        let cell = Cell::shared();
        let redis = cell.redis(&[]).await;
        let crowd = Crowd::new(TOPIC, 0..2, 0..20_000);
        let record = Arc::new(Record::new(20_000));
        let sink = Sink::start(vec![crowd.clone()], &record).await;
        sink.behave(|shop| {
            if shop == 1 { Reply::Status(500) } else { Reply::After(Duration::from_millis(5)) }
        });
        let receiver = cell.receiver(&[]).await;
        let sender = Sender {
            address: receiver.address(),
            crowd: Arc::new(crowd.clone()),
            record,
            rate: Some(100.0),
        };
        Self { cell, redis, crowd, sender, sink, _receiver: receiver }
    }

    async fn downstreamer(&self, settings: Settings<'_>) -> Service {
        let own = [("RETRY_FOR", "15s"), ("RETRY_LONGEST", "1s")];
        let settings = [&own[..], settings].concat();
        let downstreamer = self.cell.downstreamer_starting(&self.sink.url(), &settings);
        downstreamer.leads().await;
        downstreamer
    }

    /// Sends the first shop's webhooks until `count` of the second shop's are given up. Returns the
    /// time.
    async fn flow_until_dead(&self, count: u64) -> Duration {
        let began = Instant::now();
        for number in self.crowd.numbers().skip(2) {
            if self.crowd.shop(number) == 0 {
                self.sender.send_some(number..number + 1).await;
                sleep(Duration::from_millis(50)).await;
                if self.redis.stream_len(DEAD).await == count {
                    return began.elapsed();
                }
            }
            assert!(began.elapsed() < 3 * SOON, "nothing is given up");
        }
        began.elapsed()
    }
}

/// Time from the first attempt to the dead letter of a shop's only webhook, and the time without a
/// leader in between.
async fn given_up_after(is_killed: bool, park_after: &str) -> (Duration, Duration) {
    let shops = Shops::start().await;
    let mut downstreamer = shops.downstreamer(&[("PARK_AFTER", park_after)]).await;
    // One webhook of each shop, and then only the healthy shop.
    shops.sender.send_some(0..2).await;
    let restart = async {
        sleep(RETRY_FOR / 3).await;
        let away = Instant::now();
        if is_killed {
            downstreamer.kill9();
        } else {
            downstreamer.sigterm();
            downstreamer.exit(SOON).await;
        }
        downstreamer.restart();
        downstreamer.leads().await;
        away.elapsed()
    };
    tokio::join!(shops.flow_until_dead(1), restart)
}

/// Time without a leader need not count. Time that counts is not lost by the restart.
async fn is_given_up_in_time(name: &str, is_killed: bool, park_after: &str) {
    let (took, away) = given_up_after(is_killed, park_after).await;
    say(&format!(
        "retry time, {name}, PARK_AFTER={park_after}: given up after {took:?}, of which nobody led for {away:?}"
    ));
    let within = RETRY_FOR - SLACK..=RETRY_FOR + away + RETRY_LONGEST + SLACK;
    assert!(within.contains(&took), "{name}: {took:?}, not within {within:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_webhook_is_given_up_in_time_over_a_restart() {
    is_given_up_in_time("SIGTERM", false, "2s").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_webhook_that_has_not_moved_is_given_up_in_time_over_a_restart() {
    is_given_up_in_time("SIGTERM", false, "60s").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_webhook_is_given_up_in_time_over_a_kill() {
    is_given_up_in_time("SIGKILL", true, "2s").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_webhook_that_has_not_moved_is_given_up_in_time_over_a_kill() {
    is_given_up_in_time("SIGKILL", true, "60s").await;
}

/// Ages are measured with Redis' clock: the clock of the leader may be an hour ahead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_clock_is_ahead_gives_nothing_up_before_its_time() {
    let shops = Shops::start().await;
    let clock = Clock::new(shops.cell.directory(), "leader");
    clock.set(3_600);
    let environment = clock.environment();
    let mut settings = vec![("PARK_AFTER", "2s")];
    settings.extend(environment.iter().map(|(key, value)| (*key, value.as_str())));
    let _downstreamer = shops.downstreamer(&settings).await;
    shops.sender.send_some(0..2).await;
    // The shop has failed for a while when this webhook comes.
    sleep(RETRY_FOR * 2 / 3).await;
    let late = shops.crowd.numbers().skip(2).find(|number| shops.crowd.shop(*number) == 1);
    let late = late.expect("a webhook of the second shop");
    shops.sender.send_some(late..late + 1).await;
    let took = shops.flow_until_dead(2).await;
    let within = RETRY_FOR - SLACK..=RETRY_FOR + 2 * RETRY_LONGEST + 3 * SLACK;
    assert!(within.contains(&took), "given up after {took:?}, not within {within:?}");
}
