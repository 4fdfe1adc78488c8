//! Metrics and logs of the four processes: every metric is listed in docs/monitoring.md, and every
//! log line is one JSON object without secrets.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use stories::archive::ArchiveDirectory;
use stories::authority::Authority;
use stories::backend::Backend;
use stories::behaviour::Behaviour;
use stories::binaries::repository;
use stories::cell::{Cell, Settings};
use stories::client::{post, send};
use stories::kafka_server::KafkaServer;
use stories::port;
use stories::redis_server::RedisServer;
use stories::service::Service;
use stories::until::until;
use stories::webhook::{SECRET, SIGNATURE, Webhook};

const SOON: Duration = Duration::from_secs(60);

/// Topics with their own label, and one label for all others.
const TOPICS_MAX: usize = 100;

/// All four processes, after some activity of each.
struct Busy {
    receiver: Service,
    downstreamer: Service,
    producer: Service,
    archiver: Service,
    sent: Vec<Webhook>,
    _backend: Backend,
    _kafka: KafkaServer,
    _redis: RedisServer,
    _cell: Cell,
}

impl Busy {
    async fn start(settings: Settings<'_>) -> Self {
        let cell = Cell::busy();
        let kafka = cell.kafka().await;
        kafka.topic("shopify-webhooks", 1, &[]).await;
        let redis = cell.redis(&[]).await;
        let backend = Backend::start().await;
        backend.behave(|receipt| match receipt.header("X-Shopify-Topic") {
            "carts/create" => Behaviour::status(400),
            _ => Behaviour::ok(),
        });
        let receiver = cell.receiver(settings).await;
        let downstreamer = cell.downstreamer(&backend, settings).await;
        let producer = cell.kafka_producer(&kafka, settings);
        producer.ready().await;
        let archive = ArchiveDirectory::new(&cell.directory().join("archive"));
        let delay = [settings, &[("ARCHIVE_MAX_DELAY", "1s")]].concat();
        let archiver = cell.archiver(&archive.url(), &delay);
        archiver.ready().await;
        let sent = traffic();
        for webhook in &sent {
            post(receiver.address(), webhook).await;
        }
        for service in [&downstreamer, &producer] {
            until("it has settled all", SOON, async || {
                service.metric("spillway_end_to_end_seconds_count").await >= Some(1.0)
                    && service.metric("spillway_queue_webhooks").await == Some(0.0)
            })
            .await;
        }
        until("all of it is archived", SOON, async || {
            archiver.metric("spillway_archived_total").await >= Some(1.0)
                && archiver.metric("spillway_queue_webhooks").await == Some(0.0)
        })
        .await;
        Self {
            receiver,
            downstreamer,
            producer,
            archiver,
            sent,
            _backend: backend,
            _kafka: kafka,
            _redis: redis,
            _cell: cell,
        }
    }

    fn all(&self) -> [(&'static str, &Service); 4] {
        [
            ("request-receiver", &self.receiver),
            ("downstreamer", &self.downstreamer),
            ("kafka_producer", &self.producer),
            ("archiver", &self.archiver),
        ]
    }
}

/// More topics than there are labels, a webhook without a resource, one that becomes a dead letter,
/// and some that are refused.
fn traffic() -> Vec<Webhook> {
    let without_resource =
        Webhook::any().without("X-Shopify-Product-Id").body("{}").topic("shop/update");
    let given_up = Webhook::any().topic("carts/create");
    let forged = Webhook::any().topic("forged/topic").signed_with("a guess");
    let stale = Webhook::any().with("X-Shopify-Triggered-At", "2020-01-01T00:00:00Z");
    let topics = (0..120).map(|number| Webhook::any().topic(&format!("topics/{number}")));
    [without_resource, given_up, forged, stale].into_iter().chain(topics).collect()
}

/// A metric, as listed in docs/monitoring.md or as shown by a process.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Metric {
    name: String,
    labels: BTreeSet<String>,
    kind: String,
    help: String,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_metric_is_the_one_that_is_documented() {
    let apps = tempfile::NamedTempFile::new().expect("create a file");
    let app = "[[app]]\nname = \"one\"\npaths = [\"/one\"]\nsecrets = [\"x\"]\n";
    fs::write(apps.path(), app).expect("write the apps");
    let apps = apps.path().to_str().expect("a path in UTF-8");
    // Nothing listens there.
    let secrets = "http://127.0.0.1:9/{shop}";
    let directory = tempfile::tempdir().expect("create a directory");
    Authority::new(directory.path(), "authority").certify("one");
    let [certificate, key] =
        ["one.pem", "one.key"].map(|name| directory.path().join(name).display().to_string());
    let listen = port::free().to_string();
    let busy = Busy::start(&[
        ("APPS_FILE", apps),
        ("SHOP_SECRETS_URL", secrets),
        ("LISTEN_TLS", &listen),
        ("TLS_CERT_FILE", &certificate),
        ("TLS_KEY_FILE", &key),
        ("BACKEND_CERT_FILE", &certificate),
        ("BACKEND_KEY_FILE", &key),
    ])
    .await;
    let mut shown: BTreeMap<Metric, Vec<&str>> = BTreeMap::new();
    for (process, service) in busy.all() {
        let page = service.admin("/metrics").await.expect("metrics").text();
        for metric in metrics(&page) {
            shown.entry(metric).or_default().push(process);
        }
    }
    let lines = shown.iter().map(|(metric, processes)| line(metric, processes));
    let lines: Vec<String> = lines.collect();
    let page = repository().join("docs/monitoring.md");
    let page = fs::read_to_string(&page).expect("read docs/monitoring.md");
    let documented = page
        .lines()
        .filter(|line| line.starts_with("| `spillway_") || line.starts_with("| `process_"));
    let documented: Vec<&str> = documented.collect();
    assert!(documented == lines, "the table should be:\n{}", lines.join("\n"));

    let page = busy.receiver.admin("/metrics").await.expect("metrics").text();
    for name in ["spillway_accepted_total", "spillway_refused_total"] {
        let topics = page.lines().filter(|line| line.starts_with(&format!("{name}{{"))).count();
        assert!(topics <= TOPICS_MAX, "{topics} topics in {name}");
    }
    assert!(!page.contains("forged/topic"), "a stranger's topic is a label");
    assert_eq!(busy.receiver.metric("spillway_refused_total").await, Some(2.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_metrics_ask_for_a_token_if_one_is_set_and_the_probes_never_do() {
    let cell = Cell::shared();
    let _redis = cell.redis(&[]).await;
    let backend = Backend::start().await;
    let file = cell.directory().join("token");
    fs::write(&file, "old-token\n").expect("write the token");
    let settings = [("METRICS_TOKEN_FILE", file.to_str().expect("a path of letters"))];
    let receiver = cell.receiver(&settings).await;
    let downstreamer = cell.downstreamer(&backend, &settings).await;
    let ask = async |service: &Service, token: &str| {
        let head = "GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n";
        let request = format!("{head}Authorization: Bearer {token}\r\n\r\n");
        send(service.admin_address(), request.as_bytes()).await.status
    };
    for service in [&receiver, &downstreamer] {
        let answer = service.admin("/metrics").await.expect("an answer");
        assert_eq!(answer.status, 401, "{}", answer.text());
        assert_eq!(answer.headers.text("www-authenticate"), Some("Bearer"));
        assert_eq!(ask(service, "a guess").await, 401);
        assert_eq!(ask(service, "old-token").await, 200);
        assert_eq!(service.admin("/livez").await.expect("an answer").status, 200);
    }
    fs::write(&file, "new-token\n").expect("write the token");
    receiver.sighup();
    until("the new one is in force", SOON, async || ask(&receiver, "new-token").await == 200).await;
    assert_eq!(ask(&receiver, "old-token").await, 401);
    // No signal is needed.
    until("it is in force there, too", SOON, async || ask(&downstreamer, "new-token").await == 200)
        .await;

    // The consumers' readiness must not gate traffic, and says so.
    downstreamer.ready().await;
    let readyz =
        async |service: &Service| service.admin("/readyz").await.expect("it answers").text();
    assert!(readyz(&downstreamer).await.contains("never /readyz"));
    assert!(!readyz(&receiver).await.contains("never"));
}

/// The metrics of a page. Labels are those of the family's samples, without `le`.
fn metrics(page: &str) -> Vec<Metric> {
    let mut found: Vec<Metric> = Vec::new();
    for line in page.lines() {
        if let Some((name, help)) =
            line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' '))
        {
            let (labels, kind) = (BTreeSet::new(), String::new());
            found.push(Metric { name: name.into(), labels, kind, help: help.into() });
        } else if let Some(metric) = found.last_mut() {
            match line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
                Some((_, kind)) => kind.clone_into(&mut metric.kind),
                None => metric.labels.extend(labels(line)),
            }
        }
    }
    found
}

fn labels(sample: &str) -> BTreeSet<String> {
    let Some((_, rest)) = sample.split_once('{') else { return BTreeSet::new() };
    let (labels, _) = rest.rsplit_once('}').expect("a label set ends");
    let names = labels.split(',').filter_map(|pair| pair.split_once('=')).map(|(name, _)| name);
    names.filter(|name| *name != "le").map(str::to_owned).collect()
}

fn line(metric: &Metric, processes: &[&str]) -> String {
    let Metric { name, labels, kind, help } = metric;
    let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
    let labels =
        if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
    let by = if processes.len() == 4 { "all".to_owned() } else { processes.join(", ") };
    format!("| `{name}{labels}` | {kind} | {by} | {help} |")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_log_line_is_json_with_a_constant_message_and_no_secret() {
    let secrets = tempfile::NamedTempFile::new().expect("make a file");
    fs::write(secrets.path(), SECRET).expect("write the secret");
    let file = secrets.path().to_str().expect("a path of letters");
    let log = "info,request_receiver=trace,downstreamer=trace,kafka_producer=trace,archiver=trace,\
               spillway_process=trace,spillway_queue=trace,spillway_consumer=trace,\
               spillway_webhook=trace";
    let mut busy = Busy::start(&[
        ("LOG_FORMAT", "json"),
        ("RUST_LOG", log),
        ("SHOPIFY_CLIENT_SECRET", ""),
        ("SHOPIFY_CLIENT_SECRET_FILE", file),
    ])
    .await;
    busy.receiver.sighup();
    until("the secrets are read again", SOON, async || {
        busy.receiver.output().contains("secrets read again")
    })
    .await;
    fs::write(secrets.path(), "").expect("empty the secret");
    busy.receiver.sighup();
    until("that is told", SOON, async || {
        busy.receiver.output().contains("the old ones stay in force")
    })
    .await;
    let sources = sources(repository());
    let all = [&mut busy.receiver, &mut busy.downstreamer, &mut busy.producer, &mut busy.archiver];
    for service in all {
        service.sigterm();
        assert!(service.exit(SOON).await.success());
        let output = service.output();
        assert!(output.lines().count() > 1, "{} says nothing", service.name());
        for line in output.lines() {
            check(line, &sources);
        }
        for secret in busy.sent.iter().flat_map(secrets_of) {
            assert!(!output.contains(&secret), "{} logs {secret}", service.name());
        }
    }
}

fn check(line: &str, sources: &str) {
    let json: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line}"));
    for field in ["timestamp", "level", "target"] {
        assert!(json[field].is_string(), "{field} is missing: {line}");
    }
    let message =
        json["fields"]["message"].as_str().unwrap_or_else(|| panic!("no message: {line}"));
    let target = json["target"].as_str().unwrap_or_default();
    // Crates of others choose their own words.
    let ours = ["request_receiver", "downstreamer", "kafka_producer", "archiver", "spillway_"];
    if !ours.iter().any(|ours| target.starts_with(ours)) {
        return;
    }
    assert!(!message.starts_with(char::is_uppercase), "not in lower case: {line}");
    assert!(sources.contains(&format!("\"{message}\"")), "the message is not constant: {line}");
}

/// Values that no log may contain: secret, signature, body.
fn secrets_of(webhook: &Webhook) -> Vec<String> {
    let signature = webhook.headers().iter().find(|(name, _)| name == SIGNATURE);
    let signature = signature.map(|(_, value)| String::from_utf8_lossy(value).into_owned());
    let body = String::from_utf8_lossy(webhook.payload()).into_owned();
    let secrets = signature.into_iter().chain([SECRET.to_owned(), body]);
    secrets.filter(|secret| secret.len() > 2).collect()
}

/// The complete Rust source of the processes.
fn sources(repository: &Path) -> String {
    let crates = [
        "request-receiver",
        "downstreamer",
        "kafka_producer",
        "archive",
        "archiver",
        "consumer",
        "trace",
        "process",
        "queue",
    ];
    let mut directories: Vec<_> = crates.map(|name| repository.join(name).join("src")).into();
    let mut text = String::new();
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).expect("read a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                text.push_str(&fs::read_to_string(&path).expect("read a source"));
            }
        }
    }
    text
}
