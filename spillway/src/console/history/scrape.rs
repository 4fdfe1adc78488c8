//! Metrics that the processes serve at their admin addresses.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use http::header::AUTHORIZATION;
use http::{Request, StatusCode};
use http_body_util::Full;
use spillway_console::model::overview::{ProcessOverview, ProcessState};
use tokio::time::timeout;

use crate::http::{HttpAnswer, HttpClient};

/// Process that every cell has, and of which no consumer's state tells.
const EXPECTED: &str = "receiver";
/// Time within which a process answers.
const WITHIN: Duration = Duration::from_secs(2);
/// Largest answer. There are series for each topic.
const METRICS_BYTES_MAX: usize = 4 << 20;
/// Histogram of the time from the first byte received to the delivery.
const END_TO_END: &str = "spillway_end_to_end_seconds_bucket";

/// Asks the processes for their metrics.
pub(super) struct Scraper {
    client: HttpClient,
    addresses: [(&'static str, String); 3],
    token_file: Option<PathBuf>,
    /// Processes that have answered.
    seen: HashSet<&'static str>,
    /// Histograms of the last time, by the name of the process. None of one that did not answer then.
    before: HashMap<&'static str, DelayBuckets>,
}

/// Bounds of a histogram's buckets, each with the number up to it.
#[derive(Debug, Clone, Default, PartialEq)]
struct DelayBuckets(Vec<(f64, f64)>);

impl Scraper {
    /// A scraper of these addresses, which sends the first token of the file.
    pub(super) fn new(addresses: [(&'static str, String); 3], token_file: Option<PathBuf>) -> Self {
        let client = HttpClient::plain();
        Self { client, addresses, token_file, seen: HashSet::new(), before: HashMap::new() }
    }

    /// Facts of the processes that answer, with those that answered once, and the one that is expected.
    pub(super) async fn processes(&mut self) -> Vec<ProcessOverview> {
        let mut found = Vec::new();
        // It is read again: the token may be another one by now.
        let token = self.token_file.as_ref().and_then(|file| std::fs::read_to_string(file).ok());
        let token = token.as_deref().and_then(|tokens| tokens.lines().next());
        for (name, address) in self.addresses.clone() {
            let Some(request) = request(&address, token) else { continue };
            let asked = self.client.send_up_to(request, METRICS_BYTES_MAX);
            let answer = timeout(WITHIN, asked).await.ok().and_then(Result::ok);
            found.extend(self.note(name, answer.as_ref()));
        }
        found
    }

    /// Facts of a process by its answer. `None`: there is nothing to say of it.
    fn note(&mut self, name: &'static str, answer: Option<&HttpAnswer>) -> Option<ProcessOverview> {
        let Some(answer) = answer else {
            self.before.remove(name);
            let state = match self.seen.contains(name) {
                true => ProcessState::Away,
                false => ProcessState::NotSeen,
            };
            let is_told = state == ProcessState::Away || name == EXPECTED;
            return is_told.then(|| bare(name, state));
        };
        self.seen.insert(name);
        if answer.status != StatusCode::OK {
            // It is there, although it wants another token.
            self.before.remove(name);
            return Some(bare(name, ProcessState::Answers));
        }
        let text = String::from_utf8_lossy(&answer.body);
        let buckets = DelayBuckets::read(&text);
        let before = self.before.insert(name, buckets.clone());
        let delays = before.map(|before| buckets.since(&before));
        Some(process(name, &text, &delays.unwrap_or_default()))
    }
}

/// A process without any numbers.
fn bare(name: &str, state: ProcessState) -> ProcessOverview {
    ProcessOverview { name: name.to_owned(), state, ..ProcessOverview::default() }
}

fn request(address: &str, token: Option<&str>) -> Option<Request<Full<Bytes>>> {
    let mut request = Request::get(format!("http://{address}/metrics"));
    if let Some(token) = token {
        request = request.header(AUTHORIZATION, format!("Bearer {}", token.trim()));
    }
    request.body(Full::default()).ok()
}

fn process(name: &str, text: &str, delays: &DelayBuckets) -> ProcessOverview {
    ProcessOverview {
        name: name.to_owned(),
        state: ProcessState::Answers,
        p50_seconds: delays.quantile(0.5),
        p99_seconds: delays.quantile(0.99),
        concurrency: gauge(text, "spillway_concurrency_in_use"),
        concurrency_limit: gauge(text, "spillway_concurrency_limit"),
        lanes_blocked: gauge(text, "spillway_lanes_blocked"),
        spilled: gauge(text, "spillway_spill_webhooks"),
    }
}

/// Name, labels and value of each sample of a text.
fn samples(text: &str) -> impl Iterator<Item = (&str, &str, f64)> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| {
        let (key, value) = line.rsplit_once(' ')?;
        let (name, labels) = key.split_once('{').unwrap_or((key, ""));
        Some((name, labels.trim_end_matches('}'), value.parse().ok()?))
    })
}

fn gauge(text: &str, wanted: &str) -> Option<f64> {
    let found = samples(text).find(|(name, ..)| *name == wanted);
    found.map(|(_, _, value)| value).filter(|value| value.is_finite())
}

impl DelayBuckets {
    /// Reads the histogram. Those with several sets of labels are added up.
    fn read(text: &str) -> Self {
        let mut buckets: Vec<(f64, f64)> = Vec::new();
        for (_, labels, value) in samples(text).filter(|(name, ..)| *name == END_TO_END) {
            let bound = labels.split(',').find_map(|label| label.strip_prefix("le=\""));
            let bound = bound.map(|bound| bound.trim_end_matches('"'));
            let Some(bound) = bound.and_then(|bound| bound.parse::<f64>().ok()) else { continue };
            match buckets.iter_mut().find(|(known, _)| known.total_cmp(&bound).is_eq()) {
                Some((_, count)) => *count += value,
                None => buckets.push((bound, value)),
            }
        }
        buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        Self(buckets)
    }

    /// Observations since an earlier time. All of them, if counts went down: the process was started again. Before the first
    /// observation, there are no buckets.
    fn since(&self, before: &Self) -> Self {
        let is_same = self.0.len() == before.0.len();
        let is_later = is_same && self.0.iter().zip(&before.0).all(|(now, then)| now.1 >= then.1);
        if !is_later {
            return self.clone();
        }
        let counts = self.0.iter().zip(&before.0).map(|(now, then)| (now.0, now.1 - then.1));
        Self(counts.collect())
    }

    /// Bound below which this part of the observations is, between the bounds of its bucket; `None` if there are no
    /// observations.
    fn quantile(&self, part: f64) -> Option<f64> {
        let total = self.0.last()?.1;
        if total <= 0.0 {
            return None;
        }
        let wanted = total * part;
        let at = self.0.iter().position(|(_, count)| *count >= wanted)?;
        let (upper, count) = self.0[at];
        let (lower, below) = at.checked_sub(1).map_or((0.0, 0.0), |before| self.0[before]);
        if upper.is_infinite() {
            return Some(lower);
        }
        let share = (wanted - below) / (count - below).max(f64::MIN_POSITIVE);
        Some(lower + (upper - lower) * share.clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# HELP spillway_lanes_blocked Lanes\n\
        spillway_lanes_blocked 3\n\
        spillway_concurrency_limit NaN\n\
        spillway_end_to_end_seconds_bucket{le=\"0.1\"} 50\n\
        spillway_end_to_end_seconds_bucket{le=\"0.2\"} 100\n\
        spillway_end_to_end_seconds_bucket{le=\"+Inf\"} 100\n\
        spillway_end_to_end_seconds_count 100\n";

    #[test]
    fn gauges_and_quantiles_are_read() {
        let found = process("downstreamer", TEXT, &DelayBuckets::read(TEXT));
        assert_eq!(found.lanes_blocked, Some(3.0));
        assert_eq!((found.concurrency_limit, found.spilled), (None, None));
        assert_eq!(found.p50_seconds, Some(0.1));
        let p99 = found.p99_seconds.expect("there are observations");
        assert!((0.19..0.2).contains(&p99), "{p99}");
    }

    fn answer(status: StatusCode, text: &str) -> HttpAnswer {
        HttpAnswer { status, body: Bytes::copy_from_slice(text.as_bytes()) }
    }

    #[tokio::test]
    async fn a_process_that_answered_once_is_away_and_its_first_answer_has_no_quantile() {
        let addresses = ["receiver", "downstreamer", "kafka-producer"];
        let addresses = addresses.map(|name| (name, "127.0.0.1:1".to_owned()));
        let mut scraper = Scraper::new(addresses, None);
        let state = |found: Option<ProcessOverview>| found.map(|found| found.state);
        assert_eq!(state(scraper.note("receiver", None)), Some(ProcessState::NotSeen));
        assert_eq!(scraper.note("downstreamer", None), None, "its consumer tells");
        let first = answer(StatusCode::OK, TEXT);
        let found = scraper.note("downstreamer", Some(&first)).expect("it answers");
        assert_eq!((found.p50_seconds, found.lanes_blocked), (None, Some(3.0)));
        let more = TEXT.replace(" 100\n", " 200\n");
        let found = scraper.note("downstreamer", Some(&answer(StatusCode::OK, &more)));
        assert!(found.is_some_and(|found| found.p50_seconds.is_some()), "of the last seconds");
        assert_eq!(state(scraper.note("downstreamer", None)), Some(ProcessState::Away));
        let found = scraper.note("downstreamer", Some(&first)).expect("it is back");
        assert_eq!((found.p50_seconds, found.state), (None, ProcessState::Answers));
        let refused = answer(StatusCode::UNAUTHORIZED, "");
        assert_eq!(state(scraper.note("receiver", Some(&refused))), Some(ProcessState::Answers));
        assert_eq!(state(scraper.note("receiver", None)), Some(ProcessState::Away));
    }

    #[test]
    fn a_quantile_is_of_the_time_since_the_last_look() {
        let before = DelayBuckets::read(TEXT);
        assert_eq!(before.since(&before).quantile(0.5), None, "nothing was delivered");
        let slow = TEXT.replace("\"+Inf\"} 100", "\"+Inf\"} 110");
        let now = DelayBuckets::read(&slow);
        assert_eq!(now.since(&before).quantile(0.5), Some(0.2), "beyond the last bound");
        assert_eq!(before.since(&now), before, "the process was started again");
    }
}
