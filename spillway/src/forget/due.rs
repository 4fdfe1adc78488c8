//! `spillway forget --due`: carries out the redactions that were delivered, all at once.
//!
//! A purge begins when the oldest of them is half as old as it may become. By then the other consumers have usually
//! delivered theirs, each object of the archive is read once for all of them, and the other half is left for what a
//! purge has to wait for.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;
use spillway_process::shutdown;
use spillway_queue::dead::now_ms;
use spillway_queue::redactions::{self, PendingRedactions};
use tokio::time::sleep;

use super::hand::HandOrder;
use super::order::{PurgeOrder, PurgeOrders};
use super::purge::PurgePlace;
use super::report::PurgeReport;
use crate::audited::{Actor, ChangeOrder, audited};
use crate::failure::Failure;
use crate::format::OutputArgs;
use crate::out::{age, count, line};

/// Longest pause after a failure.
const FAILED_PAUSE_MAX: Duration = Duration::from_secs(60);

/// Runs `once`; with `every`, again and again until SIGTERM, with that pause or a shorter one after a failure. No failure
/// ends it: in a pod, a container that ends makes the whole pod unready, and its receiver gets no webhooks.
pub(super) async fn run_all(
    every: Option<Duration>,
    once: impl AsyncFn() -> Result<ExitCode, Failure>,
) -> Result<ExitCode, Failure> {
    let Some(every) = every else { return once().await };
    let shutdown = shutdown::on_signal()
        .map_err(|error| Failure::Failed(format!("cannot handle signals: {error}")))?;
    loop {
        // A purge that is cut off is finished by the next one.
        let Some(ended) = shutdown.run_until_cancelled(once()).await else {
            return Ok(ExitCode::SUCCESS);
        };
        let pause = match ended {
            Ok(_) => every,
            Err(failure) => {
                // Unlike `eprintln!`, it does not panic.
                writeln!(std::io::stderr(), "spillway: {failure}").ok();
                every.min(FAILED_PAUSE_MAX)
            }
        };
        if shutdown.run_until_cancelled(sleep(pause)).await.is_none() {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

/// Carries out what is due. The exit code is 1 if something is left.
pub(super) async fn run(
    purge: &mut PurgePlace,
    within: Duration,
    is_dry_run: bool,
    output: OutputArgs,
) -> Result<ExitCode, Failure> {
    let pending = redactions::pending(&purge.redis, &mut purge.connection).await?;
    let now = now_ms(&mut purge.connection).await?;
    if !is_due(&pending, now, within) {
        return nothing_due(purge, &pending, now, is_dry_run, output).await;
    }
    // A rewrite that failed after an earlier purge is tried again, whatever becomes of this one.
    let mut earlier = PurgeReport { is_dry_run, ..PurgeReport::default() };
    if let (Some(mark), false) = (&pending.rewrite, is_dry_run) {
        purge.rewrite(mark, &mut earlier).await?;
    }
    let mut orders = Vec::new();
    let mut unread = Vec::new();
    for noted in &pending.noted {
        match PurgeOrder::of(noted) {
            Ok(order) => orders.push(order),
            Err(problem) => unread.push(format!(
                "the redaction {} cannot be read ({problem}): forget the customer by hand, then delete its field in \
                 redactions and redactions:noted",
                noted.webhook
            )),
        }
    }
    for noted in &pending.by_hand {
        let order = HandOrder::parse(&noted.order);
        let order = order.map(|order| PurgeOrder::by_hand(&order, Some(noted.name.clone())));
        match order {
            Some(Ok(order)) => orders.push(order),
            _ => unread.push(format!(
                "the order {} cannot be read: give it again by hand, then delete its field in redactions and \
                 redactions:noted",
                noted.name
            )),
        }
    }
    if orders.is_empty() {
        earlier.pending.extend(unread);
        return earlier.print(output);
    }
    let Some(mut report) = carry_out(purge, orders, is_dry_run).await? else {
        let told = "another purge is at work: it is left to that one";
        if output.is_json() {
            line(json!({ "dry_run": false, "complete": false, "notes": [told] }))?;
        } else {
            line(told)?;
        }
        return Ok(ExitCode::SUCCESS);
    };
    report.pending.extend(earlier.pending);
    report.pending.extend(unread);
    report.print(output)
}

/// Carries out orders. `None` if another purge is at work.
async fn carry_out(
    purge: &mut PurgePlace,
    orders: Vec<PurgeOrder>,
    is_dry_run: bool,
) -> Result<Option<PurgeReport>, Failure> {
    let number = u64::try_from(orders.len()).unwrap_or(u64::MAX);
    let orders = PurgeOrders::new(orders);
    if is_dry_run {
        return purge.run(&orders, true).await;
    }
    let filter = count(number, "redaction");
    let change = ChangeOrder { verb: "forget --due", consumer: String::new(), filter };
    let redis = purge.redis.clone();
    let audit = purge.connection.clone();
    audited(&redis, &audit, &Actor::of_command(), change, async {
        let report = purge.run(&orders, false).await?;
        let carried_out = if report.is_some() { number } else { 0 };
        Ok((report, carried_out))
    })
    .await
}

/// True if the oldest redaction has waited for half of the time that it has, or an order by hand was cut off.
fn is_due(pending: &PendingRedactions, now_ms: u64, within: Duration) -> bool {
    let half_ms = u64::try_from(within.as_millis() / 2).unwrap_or(u64::MAX);
    let oldest = pending.noted.first();
    !pending.by_hand.is_empty()
        || oldest.is_some_and(|oldest| now_ms.saturating_sub(oldest.noted_ms) >= half_ms)
}

/// Finishes a purge that was cut off before its rewrite, if there is one.
async fn nothing_due(
    purge: &mut PurgePlace,
    pending: &PendingRedactions,
    now_ms: u64,
    is_dry_run: bool,
    output: OutputArgs,
) -> Result<ExitCode, Failure> {
    let mut report = PurgeReport { is_dry_run, ..PurgeReport::default() };
    match &pending.rewrite {
        Some(mark) if !is_dry_run => purge.rewrite(mark, &mut report).await?,
        Some(_) => report.notes.push("a rewrite of the AOF is due".to_owned()),
        None if !output.is_json() => {
            let waiting = count(pending.noted.len() as u64, "redaction");
            let oldest = pending.noted.first().map(|oldest| {
                let seconds = Duration::from_millis(now_ms.saturating_sub(oldest.noted_ms));
                format!(", the oldest delivered {} ago", age(seconds.as_secs_f64()))
            });
            line(format_args!("nothing is due: {waiting}{}", oldest.unwrap_or_default()))?;
            return Ok(ExitCode::SUCCESS);
        }
        None => {}
    }
    report.print(output)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use spillway_queue::redactions::{NotedOrder, NotedRedaction};
    use spillway_webhook::{StreamId, WebhookId};

    use super::*;

    #[tokio::test]
    async fn no_failure_ends_a_command_that_looks_again_and_again() {
        let looks = Cell::new(0);
        let failing = async || {
            looks.set(looks.get() + 1);
            Err::<ExitCode, Failure>(match looks.get() % 3 {
                0 => Failure::Usage("set ARCHIVE_URL".to_owned()),
                1 => Failure::Output(std::io::ErrorKind::BrokenPipe.into()),
                _ => Failure::Failed("away".to_owned()),
            })
        };
        let looked = async {
            while looks.get() < 5 {
                sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::select! {
            _ = run_all(Some(Duration::from_millis(1)), failing) => panic!("it ended"),
            () = looked => {}
        }
        let once = run_all(None, async || Err(Failure::Failed("once".to_owned()))).await;
        assert!(once.is_err());
    }

    #[test]
    fn a_purge_begins_after_half_of_the_time() {
        let day = Duration::from_secs(86_400);
        let entry = StreamId { ms: 5, seq: 0 };
        let noted = |noted_ms| NotedRedaction {
            webhook: WebhookId { cell: 1, entry, index: 0 },
            noted_ms,
            consumer: "http".to_owned(),
            pack: bytes::Bytes::new(),
        };
        let mut pending = PendingRedactions::default();
        assert!(!is_due(&pending, u64::MAX, day), "there is none");
        pending.noted = vec![noted(1_000), noted(90_000)];
        assert!(!is_due(&pending, 1_000 + 43_199_999, day));
        assert!(is_due(&pending, 1_000 + 43_200_000, day));
        assert!(!is_due(&pending, 0, day), "the clock went back");
        assert!(is_due(&pending, 1_500, Duration::from_secs(1)));
        let by_hand = NotedOrder { name: "hand:1".to_owned(), order: String::new() };
        pending = PendingRedactions { by_hand: vec![by_hand], ..PendingRedactions::default() };
        assert!(is_due(&pending, 0, day), "it has begun");
    }
}
