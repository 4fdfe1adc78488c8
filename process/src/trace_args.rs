//! Settings of traces. They have the names and the meaning that the OpenTelemetry specification gives
//! them. An empty value means that a setting is not set. A bad value ends the start, where the
//! specification would ignore it.

use std::fmt;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, Uri};
use clap::Args;
use percent_encoding::percent_decode_str;

use crate::settings::{Checker, check_port};

/// Path that is appended to a base URL. Source: OTLP Exporter Configuration, "Endpoint URLs for
/// OTLP/HTTP".
const TRACES_PATH: &str = "/v1/traces";
/// Longest time that a setting may give, in milliseconds.
const MS_MAX: u64 = 600_000;
/// Most spans that may wait. Each takes about 500 bytes.
const QUEUE_MAX: usize = 1 << 20;

/// Settings of traces, as given.
#[derive(Clone, Args)]
pub struct TraceArgs {
    /// URL of an OpenTelemetry Collector that takes OTLP over HTTP, such as http://127.0.0.1:4318;
    /// traces are sent to /v1/traces there. Not set: no traces
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT")]
    otel_exporter_otlp_endpoint: Option<String>,

    /// URL that traces are sent to, with its path; takes precedence over
    /// OTEL_EXPORTER_OTLP_ENDPOINT
    #[arg(long, env = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")]
    otel_exporter_otlp_traces_endpoint: Option<String>,

    /// Headers of each export: key=value pairs, comma separated, values percent-encoded, such as
    /// authorization=Bearer%20secret
    #[arg(long, env = "OTEL_EXPORTER_OTLP_HEADERS", hide_env_values = true)]
    otel_exporter_otlp_headers: Option<String>,

    /// Protocol of the export; http/protobuf is the only one
    #[arg(long, env = "OTEL_EXPORTER_OTLP_PROTOCOL", default_value = "http/protobuf")]
    otel_exporter_otlp_protocol: String,

    /// Milliseconds for one export with its retries [1 to 600000]
    #[arg(long, env = "OTEL_EXPORTER_OTLP_TIMEOUT", default_value = "10000")]
    otel_exporter_otlp_timeout: String,

    /// Name of this service in traces. Not set: service.name in OTEL_RESOURCE_ATTRIBUTES, or the name
    /// of the program
    #[arg(long, env = "OTEL_SERVICE_NAME")]
    otel_service_name: Option<String>,

    /// Attributes of this service: key=value pairs, comma separated, values percent-encoded, such as
    /// deployment.environment.name=production
    #[arg(long, env = "OTEL_RESOURCE_ATTRIBUTES")]
    otel_resource_attributes: Option<String>,

    /// Traces that are recorded: always_on, always_off, traceidratio, and parentbased_ with one of these
    /// appended, which does as traceparent of the request says if it has one
    #[arg(long, env = "OTEL_TRACES_SAMPLER", default_value = "parentbased_always_on")]
    otel_traces_sampler: String,

    /// Part of all traces that traceidratio records, such as 0.01; default: 1 [0 to 1]
    #[arg(long, env = "OTEL_TRACES_SAMPLER_ARG")]
    otel_traces_sampler_arg: Option<String>,

    /// Record no traces, whatever else is set: true or false
    #[arg(long, env = "OTEL_SDK_DISABLED", default_value = "false")]
    otel_sdk_disabled: String,

    /// Milliseconds that a span waits for others before it is exported [1 to 600000]
    #[arg(long, env = "OTEL_BSP_SCHEDULE_DELAY", default_value = "5000")]
    otel_bsp_schedule_delay: String,

    /// Milliseconds after which an export is given up [1 to 600000]
    #[arg(long, env = "OTEL_BSP_EXPORT_TIMEOUT", default_value = "30000")]
    otel_bsp_export_timeout: String,

    /// Spans that may wait for their export; others are dropped [1 to 1048576]
    #[arg(long, env = "OTEL_BSP_MAX_QUEUE_SIZE", default_value = "2048")]
    otel_bsp_max_queue_size: String,

    /// Spans in one export, at most OTEL_BSP_MAX_QUEUE_SIZE [1 to 1048576]
    #[arg(long, env = "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", default_value = "512")]
    otel_bsp_max_export_batch_size: String,
}

/// Settings of traces, checked.
#[derive(Clone)]
pub struct TraceSettings {
    /// URL that traces are sent to.
    pub endpoint: String,
    /// Name of the setting that gives it.
    pub endpoint_setting: &'static str,
    /// Headers of each export. Their values are still percent-encoded.
    pub headers: Vec<(String, String)>,
    /// Time for one export with its retries.
    pub timeout: Duration,
    /// Name of this service; `None` for the name of the program.
    pub service_name: Option<String>,
    /// Other attributes of this service.
    pub attributes: Vec<(String, String)>,
    /// Traces that are recorded.
    pub sampling: Sampling,
    /// Batches of spans.
    pub batch: BatchSettings,
}

/// Traces that are recorded.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// True if a trace that a request brings is recorded as its `traceparent` says.
    pub is_parent_based: bool,
    /// Part of the other traces that is recorded, from 0 to 1.
    pub ratio: f64,
}

/// Bounds of the batches in which spans are exported.
#[derive(Debug, Clone, Copy)]
pub struct BatchSettings {
    /// Time that a span waits for others.
    pub delay: Duration,
    /// Time after which an export is given up, with its retries: the smaller one of
    /// `OTEL_BSP_EXPORT_TIMEOUT` and `OTEL_EXPORTER_OTLP_TIMEOUT`. The exporter keeps the latter for each
    /// try, and begins none after it.
    pub timeout: Duration,
    /// Most spans that wait.
    pub queue_max: usize,
    /// Most spans in one export.
    pub spans_max: usize,
}

// Written by hand: headers hold secrets.
impl fmt::Debug for TraceArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TraceArgs").finish_non_exhaustive()
    }
}

impl fmt::Debug for TraceSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TraceSettings").field("sampling", &self.sampling).finish_non_exhaustive()
    }
}

impl TraceArgs {
    /// Checks the settings. `None` if no traces are wanted: then the others may say what they want,
    /// except for a bad value.
    pub fn check(&self, checker: &mut Checker) -> Option<TraceSettings> {
        let protocol = or(&self.otel_exporter_otlp_protocol, "http/protobuf");
        checker.choice("OTEL_EXPORTER_OTLP_PROTOCOL", protocol, &[("http/protobuf", ())]);
        let is_disabled = checker.flag("OTEL_SDK_DISABLED", or(&self.otel_sdk_disabled, "false"));
        let headers = self.headers(checker);
        let timeout =
            ms(checker, "OTEL_EXPORTER_OTLP_TIMEOUT", &self.otel_exporter_otlp_timeout, "10000");
        let mut attributes = pairs(
            checker,
            "OTEL_RESOURCE_ATTRIBUTES",
            self.otel_resource_attributes.as_deref(),
            decoded,
        );
        let named = attributes.iter().position(|(key, _)| key == "service.name");
        let named = named.map(|at| attributes.remove(at).1);
        let sampling = self.sampling(checker);
        let mut batch = self.batch(checker);
        batch.timeout = batch.timeout.min(timeout);
        let (endpoint_setting, endpoint) = self.endpoint(checker).filter(|_| !is_disabled)?;
        let service_name = set(self.otel_service_name.as_deref()).map(ToOwned::to_owned).or(named);
        Some(TraceSettings {
            endpoint,
            endpoint_setting,
            headers,
            timeout,
            service_name,
            attributes,
            sampling,
            batch,
        })
    }

    /// URL that traces are sent to, if one is set, after the name of its setting.
    fn endpoint(&self, checker: &mut Checker) -> Option<(&'static str, String)> {
        const OWN: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
        const BASE: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
        let own = set(self.otel_exporter_otlp_traces_endpoint.as_deref());
        let base = set(self.otel_exporter_otlp_endpoint.as_deref());
        let mut checked = |key: &str, url: &str| {
            if let Err(problem) = check_url(url) {
                checker.mistake(key, problem);
            }
        };
        own.inspect(|url| checked(OWN, url));
        base.inspect(|url| checked(BASE, url));
        let from_base =
            base.map(|url| (BASE, format!("{}{TRACES_PATH}", url.trim_end_matches('/'))));
        own.map(|url| (OWN, url.to_owned())).or(from_base)
    }

    fn headers(&self, checker: &mut Checker) -> Vec<(String, String)> {
        const KEY: &str = "OTEL_EXPORTER_OTLP_HEADERS";
        let headers = pairs(checker, KEY, self.otel_exporter_otlp_headers.as_deref(), |value| {
            let decoded = decoded(value)?;
            HeaderValue::try_from(decoded).is_ok().then(|| value.to_owned())
        });
        for (name, _) in &headers {
            if HeaderName::try_from(name).is_err() {
                checker.mistake(KEY, format_args!("{name:?} is not the name of a header"));
            }
        }
        headers
    }

    fn sampling(&self, checker: &mut Checker) -> Sampling {
        let ratio = match set(self.otel_traces_sampler_arg.as_deref()) {
            None => 1.0,
            Some(text) => match text.parse::<f64>() {
                Ok(ratio) if (0.0..=1.0).contains(&ratio) => ratio,
                _ => {
                    let problem = format_args!("{text:?} is not a number from 0 to 1");
                    checker.mistake("OTEL_TRACES_SAMPLER_ARG", problem);
                    1.0
                }
            },
        };
        let all = |is_parent_based, ratio| Sampling { is_parent_based, ratio };
        let choices = [
            ("always_on", all(false, 1.0)),
            ("always_off", all(false, 0.0)),
            ("traceidratio", all(false, ratio)),
            ("parentbased_always_on", all(true, 1.0)),
            ("parentbased_always_off", all(true, 0.0)),
            ("parentbased_traceidratio", all(true, ratio)),
        ];
        let sampler = or(&self.otel_traces_sampler, "parentbased_always_on");
        checker.choice("OTEL_TRACES_SAMPLER", sampler, &choices)
    }

    fn batch(&self, checker: &mut Checker) -> BatchSettings {
        const SPANS: &str = "OTEL_BSP_MAX_EXPORT_BATCH_SIZE";
        let queue = or(&self.otel_bsp_max_queue_size, "2048");
        let spans = or(&self.otel_bsp_max_export_batch_size, "512");
        let batch = BatchSettings {
            delay: ms(checker, "OTEL_BSP_SCHEDULE_DELAY", &self.otel_bsp_schedule_delay, "5000"),
            timeout: ms(checker, "OTEL_BSP_EXPORT_TIMEOUT", &self.otel_bsp_export_timeout, "30000"),
            queue_max: checker.number("OTEL_BSP_MAX_QUEUE_SIZE", queue, 1..=QUEUE_MAX),
            spans_max: checker.number(SPANS, spans, 1..=QUEUE_MAX),
        };
        if batch.spans_max > batch.queue_max {
            checker.mistake(SPANS, "must not be more than OTEL_BSP_MAX_QUEUE_SIZE");
        }
        batch
    }
}

/// The value of a setting, unless it is empty.
fn set(value: Option<&str>) -> Option<&str> {
    value.map(str::trim).filter(|text| !text.is_empty())
}

/// The value of a setting, or its default if it is empty.
fn or<'a>(value: &'a str, default: &'a str) -> &'a str {
    set(Some(value)).unwrap_or(default)
}

fn ms(checker: &mut Checker, key: &str, text: &str, default: &str) -> Duration {
    Duration::from_millis(checker.number(key, or(text, default), 1..=MS_MAX))
}

fn check_url(url: &str) -> Result<(), &'static str> {
    const FORM: &str = "must be a URL such as http://127.0.0.1:4318 or https://collector.example";
    let uri: Uri = url.parse().map_err(|_| FORM)?;
    let authority = uri.authority().ok_or(FORM)?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) {
        return Err(FORM);
    }
    if authority.as_str().contains('@') {
        return Err("must not hold a user or password: set OTEL_EXPORTER_OTLP_HEADERS");
    }
    check_port(authority)
}

/// Reads a list of `key=value` pairs, each value by `read`. No value is part of a mistake: it may be
/// a secret.
fn pairs(
    checker: &mut Checker,
    key: &str,
    text: Option<&str>,
    read: impl Fn(&str) -> Option<String>,
) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for pair in text.unwrap_or_default().split(',').map(str::trim).filter(|one| !one.is_empty()) {
        let name = pair.split_once('=').map_or("", |(name, _)| name.trim());
        let value = pair.split_once('=').and_then(|(_, value)| read(value.trim()));
        match value {
            Some(value) if !name.is_empty() => found.push((name.to_owned(), value)),
            _ => checker.mistake(key, "must be key=value pairs, comma separated, percent-encoded"),
        }
    }
    found
}

fn decoded(value: &str) -> Option<String> {
    percent_decode_str(value).decode_utf8().ok().map(Into::into)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct TestArgs {
        #[command(flatten)]
        trace: TraceArgs,
    }

    const COLLECTOR: [&str; 2] = ["--otel-exporter-otlp-endpoint", "http://collector:4318/"];

    fn checked(flags: &[&str]) -> Result<Option<TraceSettings>, String> {
        let written = TestArgs::parse_from([&["x"], flags].concat());
        let mut checker = Checker::default();
        let settings = written.trace.check(&mut checker);
        checker.finish(settings).map_err(|mistakes| mistakes.to_string())
    }

    fn with_collector(flags: &[&str]) -> TraceSettings {
        let settings = checked(&[&COLLECTOR[..], flags].concat()).expect("good settings");
        settings.expect("traces are on")
    }

    #[test]
    fn no_endpoint_means_no_traces() {
        assert!(checked(&[]).expect("good settings").is_none());
        assert!(checked(&["--otel-exporter-otlp-endpoint", " "]).expect("good").is_none());
        let disabled = [&COLLECTOR[..], &["--otel-sdk-disabled", "true"]].concat();
        assert!(checked(&disabled).expect("good settings").is_none());
    }

    #[test]
    fn the_path_is_appended_to_a_base_url_alone() {
        assert_eq!(with_collector(&[]).endpoint, "http://collector:4318/v1/traces");
        let own = ["--otel-exporter-otlp-traces-endpoint", "https://other/otlp"];
        assert_eq!(with_collector(&own).endpoint, "https://other/otlp");
        let of_own = with_collector(&own).endpoint_setting;
        assert_eq!(of_own, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT");
        assert_eq!(with_collector(&[]).endpoint_setting, "OTEL_EXPORTER_OTLP_ENDPOINT");
    }

    #[test]
    fn pairs_are_percent_encoded() {
        let settings = with_collector(&[
            "--otel-exporter-otlp-headers",
            "authorization=Bearer%20hush, x-a=1",
            "--otel-resource-attributes",
            "service.name=one,deployment.environment.name=pre%2Cproduction",
        ]);
        let authorization = ("authorization".to_owned(), "Bearer%20hush".to_owned());
        assert_eq!(settings.headers[0], authorization);
        assert_eq!(settings.service_name.as_deref(), Some("one"));
        assert_eq!(settings.attributes[0].1, "pre,production");
        let named = with_collector(&[
            "--otel-service-name",
            "two",
            "--otel-resource-attributes",
            "service.name=one",
        ]);
        assert_eq!(named.service_name.as_deref(), Some("two"));
    }

    #[test]
    fn an_export_takes_no_longer_than_either_of_its_limits() {
        let limit = |flags: &[&str]| with_collector(flags).batch.timeout;
        assert_eq!(limit(&[]), Duration::from_secs(10));
        assert_eq!(limit(&["--otel-exporter-otlp-timeout", "500"]), Duration::from_millis(500));
        assert_eq!(limit(&["--otel-exporter-otlp-timeout", "60000"]), Duration::from_secs(30));
        assert_eq!(limit(&["--otel-bsp-export-timeout", "200"]), Duration::from_millis(200));
    }

    #[test]
    fn each_sampler_of_the_specification_is_known() {
        let sampling = |name, ratio| {
            with_collector(&["--otel-traces-sampler", name, "--otel-traces-sampler-arg", ratio])
                .sampling
        };
        let is = |is_parent_based, ratio| Sampling { is_parent_based, ratio };
        assert_eq!(sampling("always_on", "0.5"), is(false, 1.0));
        assert_eq!(sampling("traceidratio", "0.5"), is(false, 0.5));
        assert_eq!(sampling("parentbased_always_off", "0.5"), is(true, 0.0));
        assert_eq!(sampling("parentbased_traceidratio", "0.01"), is(true, 0.01));
        assert_eq!(with_collector(&[]).sampling, is(true, 1.0));
    }

    #[test]
    fn every_bad_value_is_named_and_no_secret_with_it() {
        let bad = [
            ["--otel-exporter-otlp-endpoint", "collector:4318"],
            ["--otel-exporter-otlp-traces-endpoint", "http://me:hush@collector/"],
            ["--otel-exporter-otlp-headers", "hush"],
            ["--otel-exporter-otlp-protocol", "grpc"],
            ["--otel-exporter-otlp-timeout", "10s"],
            ["--otel-resource-attributes", "a"],
            ["--otel-traces-sampler", "xray"],
            ["--otel-traces-sampler-arg", "2"],
            ["--otel-sdk-disabled", "maybe"],
            ["--otel-bsp-schedule-delay", "0"],
            ["--otel-bsp-export-timeout", "soon"],
            ["--otel-bsp-max-queue-size", "many"],
            ["--otel-bsp-max-export-batch-size", "0"],
        ];
        let flags: Vec<&str> = bad.iter().flatten().copied().collect();
        let told = checked(&flags).expect_err("bad settings");
        for [flag, _] in bad {
            let key = flag.trim_start_matches('-').replace('-', "_").to_uppercase();
            assert!(told.contains(&format!("{key}:")), "{key}: {told}");
        }
        assert!(!told.contains("hush"), "{told}");
        let port = ["--otel-exporter-otlp-endpoint", "http://collector:99999"];
        let told = checked(&port).expect_err("no port");
        assert!(told.contains("from 1 to 65535"), "{told}");
        let larger = ["--otel-bsp-max-queue-size", "10"];
        let told = checked(&larger).expect_err("512 spans in an export");
        assert!(told.starts_with("OTEL_BSP_MAX_EXPORT_BATCH_SIZE"), "{told}");
    }
}
