//! Sends one signed webhook through the whole path and measures the time.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{StatusCode, Uri};
use spillway_queue::{consumers, status};

use super::backend::DemoBackend;
use super::plan::DevPlan;
use crate::dead::{self, reason};
use crate::failure::Failure;
use crate::http::HttpClient;
use crate::out::{Progress, count, printable};
use crate::place::CellArgs;
use crate::send::webhook::{Occasion, SAMPLE, SampleWebhook};

/// Time between two checks that the queue is empty again.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Result of the sample. Times are from the first byte sent.
#[derive(Debug)]
pub(super) struct SampleResult {
    /// Time until the receiver confirmed that it is stored.
    pub answered: Duration,
    /// Time until its outcome was known.
    pub ended: Duration,
    /// The outcome.
    pub outcome: SampleOutcome,
}

/// Outcome of the sample.
#[derive(Debug)]
pub(super) enum SampleOutcome {
    /// The demo backend saw it arrive.
    Seen,
    /// Nothing waits any more, and it is no dead letter.
    Settled,
    /// Given up.
    Dead {
        /// Spillway-Id of the dead letter.
        spillway_id: String,
        /// Reason, with the status of the backend's answer.
        reason: String,
    },
}

/// The sample, signed with the cell's secret.
pub(super) fn webhook(plan: &DevPlan) -> Result<SampleWebhook, Failure> {
    let body = Bytes::from_static(SAMPLE.as_bytes());
    SampleWebhook::classic("products/update", "example.myshopify.com", body, &plan.secrets()?)
}

/// Sends the sample and waits for its delivery.
pub(super) async fn deliver(
    plan: &DevPlan,
    webhook: &SampleWebhook,
    demo: Option<&DemoBackend>,
) -> Result<SampleResult, Failure> {
    let uri: Uri = plan.receiver_url().parse().expect("BUG: a URL made of an address");
    let client = HttpClient::plain();
    let occasion = Occasion::new();
    let seen = demo.map(|demo| demo.expect(&occasion.webhook_id));
    let started = Instant::now();
    let answer = client.send(webhook.request_of(&uri, &occasion)).await;
    let answer = answer.map_err(|error| Failure::Failed(format!("the sample: {error}")))?;
    let answered = started.elapsed();
    if answer.status != StatusCode::OK {
        let body = printable(&answer.body);
        let text = format!("the receiver answered the sample {}: {body}", answer.status);
        return Err(Failure::Failed(text));
    }
    let (ended_at, outcome) = match seen {
        Some(seen) => {
            let gone = |_| Failure::Failed("the demo backend stopped".to_owned());
            (seen.await.map_err(gone)?, SampleOutcome::Seen)
        }
        None => {
            nothing_waits(&plan.place).await?;
            (Instant::now(), settled(&plan.place, &occasion.webhook_id).await?)
        }
    };
    Ok(SampleResult { answered, ended: ended_at.duration_since(started), outcome })
}

/// Outcome of a webhook that waits no more. A dead letter is written before its webhook counts as
/// settled.
async fn settled(place: &CellArgs, webhook_id: &str) -> Result<SampleOutcome, Failure> {
    let letters = dead::find(place, consumers::HTTP, webhook_id).await?;
    Ok(match letters.last() {
        None => SampleOutcome::Settled,
        Some(letter) => {
            SampleOutcome::Dead { spillway_id: letter.webhook.to_string(), reason: reason(letter) }
        }
    })
}

async fn nothing_waits(place: &CellArgs) -> Result<(), Failure> {
    let (redis, mut connection) = place.connect().await?;
    let mut progress = Progress::new();
    loop {
        let status = status::read(&redis, &mut connection).await?;
        let http = status.consumers.iter().find(|consumer| consumer.name == consumers::HTTP);
        let waiting = http.map_or(1, |consumer| consumer.waiting);
        if waiting == 0 {
            return Ok(());
        }
        progress.tell(|| {
            let waiting = count(waiting, "webhook");
            format!("stored; waiting for its delivery, {waiting} to go: see run/downstreamer.log")
        });
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
