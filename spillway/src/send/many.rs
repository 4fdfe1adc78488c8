//! Sends many webhooks at a rate, with a limit on requests under way, and counts the answers.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use http::{StatusCode, Uri};
use tokio::task::JoinSet;

use super::unanswered;
use super::webhook::SampleWebhook;
use crate::failure::Failure;
use crate::http::HttpClient;
use crate::out::{Progress, float, line};

/// Maximum number of requests under way: enough to fill a pack, few enough for any receiver.
const IN_FLIGHT_MAX: usize = 64;

/// Answers by status. `None` stands for "no answer".
#[derive(Debug, Default)]
struct AnswerTally {
    answers: BTreeMap<Option<StatusCode>, u64>,
    last_error: Option<String>,
}

/// Sends `count` webhooks. Returns true if all were answered 200.
pub(crate) async fn run(
    client: &HttpClient,
    uri: &Uri,
    webhook: &SampleWebhook,
    count: u64,
    rate: Option<u32>,
) -> Result<bool, Failure> {
    let started = Instant::now();
    let mut tally = AnswerTally::default();
    let mut progress = Progress::new();
    let mut under_way = JoinSet::new();
    for number in 0..count {
        if let Some(rate) = rate {
            let due = started + due_after(number, rate);
            tokio::time::sleep_until(due.into()).await;
        }
        if under_way.len() >= IN_FLIGHT_MAX {
            tally.note(under_way.join_next().await);
        }
        let client = client.clone();
        let request = webhook.request(uri);
        let uri = uri.clone();
        under_way.spawn(async move {
            let answer = client.send(request).await;
            answer.map(|answer| answer.status).map_err(|error| unanswered(&uri, &error))
        });
        progress
            .tell(|| format!("{} of {count} sent, {} answered 200", number + 1, tally.stored()));
    }
    while !under_way.is_empty() {
        tally.note(under_way.join_next().await);
    }
    line(tally.summary(started.elapsed()))?;
    Ok(tally.stored() == count)
}

/// Time from the start at which request `number` is due. It does not drift, however long a sleep
/// takes.
fn due_after(number: u64, rate: u32) -> Duration {
    Duration::from_secs_f64(float(number) / f64::from(rate))
}

impl AnswerTally {
    fn note(&mut self, ended: Option<Result<Result<StatusCode, String>, tokio::task::JoinError>>) {
        let outcome = match ended {
            Some(Ok(outcome)) => outcome,
            Some(Err(error)) => Err(error.to_string()),
            None => return,
        };
        *self.answers.entry(outcome.as_ref().ok().copied()).or_default() += 1;
        self.last_error = outcome.err().or(self.last_error.take());
    }

    fn stored(&self) -> u64 {
        self.answers.get(&Some(StatusCode::OK)).copied().unwrap_or(0)
    }

    fn summary(&self, took: Duration) -> String {
        let sent: u64 = self.answers.values().sum();
        let mut parts = vec![format!("{sent} sent"), format!("{} answered 200", self.stored())];
        for (status, number) in &self.answers {
            match status {
                Some(StatusCode::OK) => {}
                Some(status) => parts.push(format!("{number} answered {}", status.as_u16())),
                None => parts.push(format!("{number} without an answer")),
            }
        }
        let seconds = took.as_secs_f64();
        let rate = float(sent) / seconds.max(0.001);
        let mut text = format!("{}, in {seconds:.2} s, {rate:.0} a second", parts.join(", "));
        if let Some(error) = &self.last_error {
            text.push_str(&format!("\nthe last one without an answer: {error}"));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_outcome_is_counted() {
        let mut tally = AnswerTally::default();
        let refused = || Some(Ok(Err("connection refused".to_owned())));
        for ended in [Some(Ok(Ok(StatusCode::OK))), Some(Ok(Ok(StatusCode::OK))), refused(), None] {
            tally.note(ended);
        }
        tally.note(Some(Ok(Ok(StatusCode::SERVICE_UNAVAILABLE))));
        assert_eq!(tally.stored(), 2);
        let expected = "4 sent, 2 answered 200, 1 without an answer, 1 answered 503, in 2.00 s, \
                        2 a second\nthe last one without an answer: connection refused";
        assert_eq!(tally.summary(Duration::from_secs(2)), expected);
    }

    #[test]
    fn a_rate_does_not_drift() {
        assert_eq!(due_after(0, 3), Duration::ZERO);
        assert_eq!(due_after(3_000, 3), Duration::from_secs(1000));
    }
}
