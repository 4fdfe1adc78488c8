//! Metrics of the last hours from a Prometheus: one question for all series, asked again when its answer is old.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderValue, Request, StatusCode};
use http_body_util::Full;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use spillway_console::ProblemDetails;
use spillway_console::model::history::{HistoryQuery, MetricHistory, MetricSeries, MetricSource};
use spillway_process::settings::read_secrets;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::prometheus_args::PrometheusPlace;
use super::promql::{CELLS, QuestionScope, SERIES_LABEL, planned};
use super::{EVERY, POINTS_MAX, SERIES_MAX};
use crate::console::links::kept::KeptAnswers;
use crate::http::HttpAnswer;
use crate::out::{float, now_ms, printable};

/// Time within which Prometheus answers, and for which a question waits until another one is answered.
const WITHIN: Duration = Duration::from_secs(2);
/// Largest answer. One with 720 values of 200 series has 5 MB.
const ANSWER_BYTES_MAX: usize = 8 << 20;
/// Longest part of an error of Prometheus that is shown.
const ERROR_LETTERS_MAX: usize = 200;
/// Windows whose answers are kept: each may have some megabytes.
const WINDOWS_MAX: usize = 8;
/// Longest window: a month.
const HOURS_MAX: u32 = 31 * 24;

/// Metrics of the last hours, as a Prometheus has them.
pub(in crate::console) struct PrometheusHistory {
    reader: Arc<PrometheusReader>,
    /// Answers by their hours.
    kept: KeptAnswers<u32, MetricHistory>,
}

/// Asks a Prometheus.
struct PrometheusReader {
    place: PrometheusPlace,
    /// One question at a time.
    turn: Semaphore,
}

/// Times of a history, in seconds since the Unix epoch.
struct TimeGrid {
    first: u64,
    step: u64,
    count: u64,
}

/// An answer of Prometheus, good or bad.
#[derive(Debug, Default, Deserialize)]
struct RangeAnswer {
    #[serde(default)]
    data: RangeData,
    #[serde(default)]
    error: String,
}

#[derive(Debug, Default, Deserialize)]
struct RangeData {
    #[serde(default)]
    result: Vec<RangeRow>,
}

/// Labels of a series, and its times with their values.
#[derive(Debug, Deserialize)]
struct RangeRow {
    metric: HashMap<String, String>,
    #[serde(default)]
    values: Vec<(f64, String)>,
}

impl PrometheusHistory {
    /// Nothing is asked yet.
    pub(super) fn new(place: PrometheusPlace) -> Self {
        let reader = Arc::new(PrometheusReader { place, turn: Semaphore::new(1) });
        // An answer is as new as a sample in memory.
        Self { reader, kept: KeptAnswers::bounded(EVERY, WINDOWS_MAX) }
    }

    /// Metrics of the last hours. The error is a sentence.
    pub(in crate::console) async fn recent(
        &self,
        query: &HistoryQuery,
    ) -> Result<MetricHistory, String> {
        let hours = query.hours.unwrap_or(1).clamp(1, HOURS_MAX);
        let reader = self.reader.clone();
        let ask = move || async move {
            let read = reader.read(&TimeGrid::new(hours, now_ms() / 1_000)).await;
            read.map_err(|problem| {
                let shown = &reader.place.shown;
                ProblemDetails::unavailable(format!("Prometheus at {shown} {problem}"))
            })
        };
        let found = self.kept.get(hours, ask).await;
        found.map(|history| MetricHistory::clone(&history)).map_err(|problem| problem.detail)
    }
}

impl PrometheusReader {
    /// Asks for all series. The error says what Prometheus does.
    async fn read(&self, grid: &TimeGrid) -> Result<MetricHistory, String> {
        let Ok(Ok(_turn)) = timeout(WITHIN, self.turn.acquire()).await else {
            return Err("is busy with other questions: try again soon".to_owned());
        };
        let request = self.request(grid)?;
        let asked = self.place.client.send_up_to(request, ANSWER_BYTES_MAX);
        let answer = timeout(WITHIN, asked).await;
        let answer =
            answer.map_err(|_| format!("does not answer within {} s", WITHIN.as_secs()))?;
        let answer = answer.map_err(|error| format!("can't be asked: {error}"))?;
        history(&rows(&answer)?, grid)
    }

    fn request(&self, grid: &TimeGrid) -> Result<Request<Full<Bytes>>, String> {
        let scope = QuestionScope { matchers: &self.place.matchers, step_seconds: grid.step };
        let fields = [
            ("query", scope.question()),
            ("start", grid.first.to_string()),
            ("end", grid.last().to_string()),
            ("step", grid.step.to_string()),
            ("timeout", format!("{}s", WITHIN.as_secs())),
        ];
        let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let fields = fields.map(|(name, value)| format!("{name}={}", encoded(&value)));
        let mut request = Request::post(self.place.endpoint.clone())
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded");
        if let Some(authorization) = self.authorization()? {
            request = request.header(AUTHORIZATION, authorization);
        }
        let body = Full::new(Bytes::from(fields.join("&")));
        request.body(body).map_err(|error| format!("can't be asked: {error}"))
    }

    /// User and password, or the token as it is in its file now.
    fn authorization(&self) -> Result<Option<HeaderValue>, String> {
        let Some(file) = &self.place.token_file else {
            return Ok(self.place.authorization.clone());
        };
        let unreadable = |reason: &dyn std::fmt::Display| {
            tracing::warn!(%reason, "the token for prometheus can't be read");
            "can't be asked: its token can't be read, and the console's log says why".to_owned()
        };
        let tokens = read_secrets(file).map_err(|reason| unreadable(&reason))?;
        let token = tokens.first().map_or("", |token| token.as_str());
        let mut header = HeaderValue::try_from(format!("Bearer {token}"))
            .map_err(|_| unreadable(&"it has characters that no header takes"))?;
        header.set_sensitive(true);
        Ok(Some(header))
    }
}

impl TimeGrid {
    /// Times of this many hours up to now, with a value for each pixel of a plot at most.
    fn new(hours: u32, now: u64) -> Self {
        const COUNT_MAX: u64 = POINTS_MAX as u64;
        let window = u64::from(hours) * 3_600;
        let step = window.div_ceil(COUNT_MAX).max(EVERY.as_secs());
        let count = window / step;
        debug_assert!((1..=COUNT_MAX).contains(&count), "a plot has a bound");
        // The last value is of now, however long a step is: a new Prometheus has no others.
        let last = now / EVERY.as_secs() * EVERY.as_secs();
        Self { first: last.saturating_sub(step * (count - 1)), step, count }
    }

    fn last(&self) -> u64 {
        self.first + self.step * (self.count - 1)
    }

    fn times(&self) -> Vec<u64> {
        (0..self.count).map(|place| self.first + place * self.step).collect()
    }
}

/// Rows of a good answer.
fn rows(answer: &HttpAnswer) -> Result<Vec<RangeRow>, String> {
    let parsed = serde_json::from_slice::<RangeAnswer>(&answer.body);
    match answer.status {
        StatusCode::OK if answer.body.is_empty() => Err(format!(
            "answers with more than {} MiB, or broke off: select one cell with PROMETHEUS_SELECTOR",
            ANSWER_BYTES_MAX >> 20
        )),
        StatusCode::OK => match parsed {
            Ok(answer) => Ok(answer.data.result),
            Err(_) => Err("does not answer as a Prometheus: check PROMETHEUS_URL".to_owned()),
        },
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(format!(
            "answers {}: set a user and password in PROMETHEUS_URL, or PROMETHEUS_TOKEN_FILE",
            answer.status.as_u16()
        )),
        status => {
            let error = parsed.map(|answer| answer.error).unwrap_or_default();
            let error: String =
                printable(error.as_bytes()).chars().take(ERROR_LETTERS_MAX).collect();
            let error = if error.is_empty() { "check PROMETHEUS_URL".to_owned() } else { error };
            Err(format!("answers {}: {error}", status.as_u16()))
        }
    }
}

/// History of an answer: the times between the first and the last of which something is known.
fn history(rows: &[RangeRow], grid: &TimeGrid) -> Result<MetricHistory, String> {
    let times = grid.times();
    let mut all = Vec::new();
    for row in rows {
        let series = row.metric.get(SERIES_LABEL).and_then(|name| planned(name));
        let Some(series) = series else { continue };
        let values = on_grid(&row.values, &times);
        if series.name == CELLS {
            ensure_one_cell(&values)?;
        } else {
            all.push(MetricSeries {
                name: series.name.to_owned(),
                consumer: row.part(),
                unit: series.unit.to_owned(),
                values,
            });
        }
    }
    let is_known =
        |place: &usize| all.iter().any(|series: &MetricSeries| series.values[*place].is_some());
    let known = (0..times.len()).find(is_known).zip((0..times.len()).rfind(is_known));
    let Some((first, last)) = known else {
        return Err("has nothing of this cell: check that it scrapes the processes, and \
                    PROMETHEUS_SELECTOR"
            .to_owned());
    };
    for series in &mut all {
        series.values = series.values[first..=last].to_vec();
    }
    all.sort_by(|one, other| (&one.name, &one.consumer).cmp(&(&other.name, &other.consumer)));
    all.truncate(SERIES_MAX);
    Ok(MetricHistory {
        at_ms: times[first..=last].iter().map(|time| time * 1_000).collect(),
        series: all,
        source: MetricSource::Prometheus,
        problem: None,
    })
}

/// Refuses to add several cells up, as far as they are there now.
fn ensure_one_cell(cells: &[Option<f64>]) -> Result<(), String> {
    let newest = cells.iter().rev().copied().flatten().next();
    match newest.filter(|cells| *cells > 1.0) {
        None => Ok(()),
        Some(cells) => Err(format!(
            "has {cells} cells: select this one with PROMETHEUS_SELECTOR, such as cell=\"one\""
        )),
    }
}

/// Values at these times; none where there is no value, or one that is no number.
fn on_grid(values: &[(f64, String)], times: &[u64]) -> Vec<Option<f64>> {
    let mut values = values.iter().peekable();
    let at = |time: &u64| {
        let time = float(*time);
        while values.next_if(|(at, _)| *at < time - 0.5).is_some() {}
        let (_, text) = values.next_if(|(at, _)| *at <= time + 0.5)?;
        text.parse::<f64>().ok().filter(|value| value.is_finite())
    };
    times.iter().map(at).collect()
}

impl RangeRow {
    /// Consumer or process of the series, by the name that it has in memory; empty if it is of the cell.
    fn part(&self) -> String {
        let label = |name: &str| self.metric.get(name).map(String::as_str);
        let part = label("consumer").or_else(|| match label("job") {
            Some("request-receiver") => Some("receiver"),
            Some("kafka_producer") => Some("kafka-producer"),
            other => other,
        });
        part.unwrap_or_default().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;
    use spillway_process::Checker;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio::task::JoinHandle;

    use super::super::prometheus_args::PrometheusArgs;
    use super::*;

    #[derive(Debug, Parser)]
    struct Flags {
        #[command(flatten)]
        prometheus: PrometheusArgs,
    }

    fn history_of(flags: &[&str]) -> PrometheusHistory {
        let flags = Flags::parse_from([&["x"], flags].concat());
        let place = flags.prometheus.check(&mut Checker::default());
        PrometheusHistory::new(place.expect("it is set"))
    }

    /// A server that answers one request with these bytes and returns it. Without bytes, it does not answer.
    async fn server(answer: Option<String>) -> (String, JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let serving = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut request = String::new();
            // The last field ends the request.
            while !request.ends_with("timeout=2s") {
                let mut bytes = vec![0; 64 << 10];
                let read = stream.read(&mut bytes).await.expect("a request");
                assert!(read > 0, "it ended: {request}");
                request += &String::from_utf8_lossy(&bytes[..read]);
            }
            match answer {
                // A client need not read all of it.
                Some(answer) => {
                    stream.write_all(answer.as_bytes()).await.ok();
                }
                None => std::future::pending::<()>().await,
            }
            request
        });
        (url, serving)
    }

    fn answer(status: &str, body: &str) -> Option<String> {
        let length = body.len();
        Some(format!(
            "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\
             Connection: close\r\n\r\n{body}"
        ))
    }

    fn row(name: &str, label: (&str, &str), values: &[(u64, &str)]) -> RangeRow {
        let metric = [(SERIES_LABEL, name), label];
        let metric = metric.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let values = values.iter().map(|(at, value)| (float(*at), (*value).to_owned()));
        RangeRow { metric: HashMap::from(metric), values: values.collect() }
    }

    #[test]
    fn times_are_as_many_as_a_plot_shows() {
        for (hours, step, count) in [(1, 10, 360), (6, 30, 720), (24, 120, 720), (744, 3_720, 720)]
        {
            let grid = TimeGrid::new(hours, 1_767_268_807);
            assert_eq!((grid.step, grid.count), (step, count), "{hours} hours");
            assert_eq!(grid.last(), 1_767_268_800, "{hours} hours");
            assert_eq!(grid.times().last(), Some(&grid.last()));
        }
    }

    #[test]
    fn an_answer_has_the_shape_of_what_is_in_memory() {
        let grid = TimeGrid { first: 100, step: 10, count: 5 };
        let rows = [
            row("waiting", ("consumer", "http"), &[(110, "3"), (130, "4")]),
            row("p99_seconds", ("job", "kafka_producer"), &[(110, "NaN"), (120, "0.25")]),
            row("accepted_per_second", ("", ""), &[(110, "7.5")]),
            row("cells", ("", ""), &[(110, "2"), (120, "1")]),
            row("of_another_version", ("", ""), &[(140, "1")]),
        ];
        let history = history(&rows, &grid).expect("a history");
        assert_eq!(history.at_ms, [110_000, 120_000, 130_000], "and no empty edges");
        assert_eq!((history.source, &history.problem), (MetricSource::Prometheus, &None));
        let shown = history.series.iter().map(|series| {
            let MetricSeries { name, consumer, unit, values } = series;
            (name.as_str(), consumer.as_str(), unit.as_str(), values.as_slice())
        });
        let expected: [(&str, &str, &str, &[Option<f64>]); 3] = [
            ("accepted_per_second", "", "per_second", &[Some(7.5), None, None]),
            ("p99_seconds", "kafka-producer", "seconds", &[None, Some(0.25), None]),
            ("waiting", "http", "webhooks", &[Some(3.0), None, Some(4.0)]),
        ];
        assert_eq!(shown.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn several_cells_or_none_are_a_problem() {
        let grid = TimeGrid { first: 100, step: 10, count: 5 };
        let two = [row("cells", ("", ""), &[(110, "1"), (120, "2")])];
        let told = history(&two, &grid).expect_err("two cells");
        assert!(told.contains("has 2 cells: select this one with PROMETHEUS_SELECTOR"), "{told}");
        let nothing = [row("waiting", ("consumer", "http"), &[(110, "NaN"), (200, "4")])];
        let told = history(&nothing, &grid).expect_err("nothing");
        assert!(told.contains("has nothing of this cell"), "{told}");
    }

    #[tokio::test]
    async fn a_question_has_its_matchers_and_its_token_and_is_asked_once_in_ten_seconds() {
        let body = json!({ "status": "success", "data": { "resultType": "matrix", "result": [{
            "metric": { SERIES_LABEL: "waiting", "consumer": "http" },
            "values": [[now_ms() / 1_000 / 10 * 10, "3"]],
        }] } });
        let (url, serving) = server(answer("200 OK", &body.to_string())).await;
        let token = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(token.path(), "hush\nother\n").expect("write");
        let file = token.path().to_str().expect("a plain path");
        let history = history_of(&[
            "--prometheus-url",
            &format!("{url}/prometheus"),
            "--prometheus-token-file",
            file,
            "--prometheus-selector",
            r#"cell="one""#,
        ]);
        // The server answers no second question.
        for _ in 0..2 {
            let found = history.recent(&HistoryQuery { hours: Some(1) }).await.expect("a history");
            assert_eq!(found.series.len(), 1);
        }
        let request = serving.await.expect("it ends");
        assert!(request.starts_with("POST /prometheus/api/v1/query_range HTTP/1.1"), "{request}");
        for part in ["Authorization: Bearer hush\r\n", "cell%3D%22one%22", "&step=10&"] {
            assert!(request.contains(part), "{part} is missing: {request}");
        }
    }

    #[tokio::test]
    async fn a_bad_answer_is_a_sentence() {
        let large = format!("{{\"status\":\"{}\"}}", "x".repeat(ANSWER_BYTES_MAX));
        for (answer, expected) in [
            (answer("400 Bad Request", r#"{"status":"error","error":"bad regexp"}"#), "bad regexp"),
            (answer("401 Unauthorized", ""), "PROMETHEUS_TOKEN_FILE"),
            (answer("302 Found", ""), "answers 302"),
            (answer("200 OK", "<html>"), "does not answer as a Prometheus"),
            (answer("200 OK", r#"{"status":"success"}"#), "has nothing of this cell"),
            (answer("200 OK", &large), "more than 8 MiB"),
            (None, "does not answer within 2 s"),
        ] {
            let (url, serving) = server(answer).await;
            let with_password = url.replace("://", "://me:hush@");
            let history = history_of(&["--prometheus-url", &with_password]);
            let told = history.recent(&HistoryQuery::default()).await.expect_err("no history");
            assert!(told.contains(expected) && told.contains(&url), "{expected}: {told}");
            assert!(!told.contains("hush"), "{told}");
            serving.abort();
        }
    }
}
