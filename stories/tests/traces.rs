//! One trace for each webhook, from the sender over the queue to the backend or into Kafka, and a
//! collector that delays nothing.

use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::mocking::MockCluster;
use stories::backend::Backend;
use stories::behaviour::Behaviour;
use stories::cell::Cell;
use stories::client::post;
use stories::collector::{Collected, Collector};
use stories::kafka_topic::Topic;
use stories::port;
use stories::until::until;
use stories::webhook::Webhook;

const SOON: Duration = Duration::from_secs(60);
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const DROPPED: &str = "spillway_trace_spans_dropped_total";

/// The only span of this name.
fn named<'a>(spans: &'a [Collected], name: &str) -> &'a Collected {
    let mut found = spans.iter().filter(|span| span.name == name);
    let one = found.next().unwrap_or_else(|| panic!("no {name} in {spans:#?}"));
    assert!(found.next().is_none(), "several of {name} in {spans:#?}");
    one
}

/// Settings that export to `url` soon, and all else as it is by default.
fn traced(url: &str) -> [(&str, &str); 3] {
    [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", url),
        ("OTEL_BSP_SCHEDULE_DELAY", "100"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-key=a%20secret"),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_webhook_that_is_retried_is_one_trace() {
    let cell = Cell::shared();
    let _redis = cell.redis(&[]).await;
    let (backend, collector) = (Backend::start().await, Collector::start().await);
    backend.behave(|receipt| match receipt.attempt() {
        1 => Behaviour::status(503),
        _ => Behaviour::ok(),
    });
    let url = collector.url();
    let receiver = cell.receiver(&traced(&url)).await;
    let _downstreamer = cell.downstreamer(&backend, &traced(&url)).await;
    let webhook = Webhook::any().header("traceparent", SENT).header("tracestate", "vendor=1");
    assert_eq!(post(receiver.address(), &webhook).await.status, 200);
    let spans = collector.reaches(5).await;
    assert_eq!(spans.len(), 5, "{spans:#?}");
    for span in &spans {
        assert_eq!((&*span.trace, &*span.state), (TRACE, "vendor=1"), "{span:#?}");
        assert!(!collector.keeps_headers() || span.key == "a secret", "{span:#?}");
        assert!(span.times[0] <= span.times[1], "{span:#?}");
    }
    let receive = named(&spans, "receive");
    let store = named(&spans, "store");
    let dispatch = named(&spans, "dispatch");
    assert_eq!(receive.parent, "00f067aa0ba902b7");
    assert_eq!((&store.parent, &dispatch.parent), (&receive.id, &store.id));
    assert_eq!((&*receive.service, &*store.service), ("request-receiver", "request-receiver"));
    assert_eq!(receive.attribute("spillway.outcome"), "accepted");
    assert_eq!(receive.attribute("spillway.shop"), "story.myshopify.com");
    let attempts: Vec<_> = spans.iter().filter(|span| span.name == "attempt").collect();
    assert_eq!(attempts.len(), 2);
    for (number, (attempt, receipt)) in attempts.iter().zip(backend.receipts()).enumerate() {
        assert_eq!((&attempt.parent, &*attempt.service), (&dispatch.id, "downstreamer"));
        assert_eq!(attempt.attribute("spillway.attempt"), (number + 1).to_string());
        assert_eq!(receipt.header("traceparent"), attempt.traceparent());
        assert_eq!(receipt.header("tracestate"), "vendor=1");
        assert_eq!(receipt.spillway_id(), dispatch.attribute("spillway.id"));
        assert!(dispatch.times[0] <= attempt.times[0] && attempt.times[1] <= dispatch.times[1]);
    }
    let statuses = attempts.iter().map(|attempt| attempt.attribute("http.response.status_code"));
    assert_eq!(statuses.collect::<Vec<_>>(), ["503", "200"]);
    let errors = [&attempts[0].error, &attempts[1].error, &dispatch.error];
    assert_eq!(errors, [&Some("failed".to_owned()), &None, &None]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_letter_ends_its_trace() {
    let cell = Cell::shared();
    let _redis = cell.redis(&[]).await;
    let (backend, collector) = (Backend::start().await, Collector::start().await);
    backend.behave(|_| Behaviour::status(422));
    let url = collector.url();
    let receiver = cell.receiver(&traced(&url)).await;
    let _downstreamer = cell.downstreamer(&backend, &traced(&url)).await;
    assert_eq!(post(receiver.address(), &Webhook::any()).await.status, 200);
    let spans = collector.reaches(4).await;
    let receive = named(&spans, "receive");
    assert_eq!(receive.parent, "", "a trace of our own: {receive:#?}");
    let dispatch = named(&spans, "dispatch");
    assert_eq!(dispatch.error.as_deref(), Some("status"));
    let attempt = named(&spans, "attempt");
    assert_eq!((&attempt.parent, attempt.error.as_deref()), (&dispatch.id, Some("dead")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_in_kafka_is_in_the_trace_of_its_webhook() {
    let brokers: MockCluster<'static, _> = MockCluster::new(1).expect("a mock cluster");
    brokers.create_topic("shopify-webhooks", 1, 1).expect("a topic");
    let servers = brokers.bootstrap_servers();
    let cell = Cell::shared();
    let _redis = cell.redis(&[]).await;
    let collector = Collector::start().await;
    let url = collector.url();
    let receiver = cell.receiver(&traced(&url)).await;
    let producer = cell.kafka_producer_to(&servers, &traced(&url));
    producer.ready().await;
    let webhook = Webhook::any().header("traceparent", SENT);
    assert_eq!(post(receiver.address(), &webhook).await.status, 200);
    let spans = collector.reaches(3).await;
    let store = named(&spans, "store");
    let transaction = named(&spans, "transaction");
    assert_eq!((&*transaction.trace, &transaction.parent), (TRACE, &store.id));
    assert_eq!((&*transaction.service, &transaction.error), ("kafka_producer", &None));
    assert_eq!(transaction.attribute("messaging.destination.name"), "shopify-webhooks");
    assert_eq!(transaction.attribute("messaging.batch.message_count"), "1");
    let mut clients = ClientConfig::new();
    clients.set("bootstrap.servers", &servers);
    let read = Topic::records(clients, "shopify-webhooks", 1);
    read.reaches(1, SOON).await;
    let record = read.all().remove(0);
    assert_eq!(record.header("traceparent"), Some(&*transaction.traceparent()));
    assert_eq!(record.header("spillway-id"), Some(transaction.attribute("spillway.id")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_recorded_is_passed_on_as_it_came() {
    let cell = Cell::shared();
    let _redis = cell.redis(&[]).await;
    let (backend, collector) = (Backend::start().await, Collector::start().await);
    let url = collector.url();
    let settings =
        [&traced(&url)[..], &[("OTEL_TRACES_SAMPLER", "parentbased_always_off")]].concat();
    let receiver = cell.receiver(&settings).await;
    let _downstreamer = cell.downstreamer(&backend, &settings).await;
    let not_sampled = SENT.replace("-01", "-00");
    for webhook in [
        Webhook::any().header("traceparent", &not_sampled).header("tracestate", "vendor=1"),
        Webhook::any(),
        Webhook::any().header("traceparent", SENT),
        Webhook::any().header("traceparent", SENT).signed_with("a guess"),
    ] {
        post(receiver.address(), &webhook).await;
    }
    // Three of them are signed, and one of these has a parent that is recorded.
    until("three are delivered", SOON, async || backend.delivered() == 3).await;
    let spans = collector.reaches(4).await;
    assert_eq!(spans.len(), 4, "{spans:#?}");
    let passed_on = |receipt: &stories::receipt::Receipt| {
        let of = |name| receipt.headers.text(name).map(ToOwned::to_owned);
        (of("traceparent"), of("tracestate"))
    };
    let found: Vec<_> = backend.receipts().iter().map(passed_on).collect();
    assert!(found.contains(&(Some(not_sampled), Some("vendor=1".to_owned()))), "{found:?}");
    assert!(found.contains(&(None, None)), "{found:?}");
    let attempt = named(&spans, "attempt").traceparent();
    assert!(found.contains(&(Some(attempt), None)), "{found:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_collector_spans_are_dropped_and_counted_and_webhooks_flow() {
    let cell = Cell::shared();
    let _redis = cell.redis(&[]).await;
    let backend = Backend::start().await;
    let nowhere = format!("http://{}", port::free());
    let settings = [&traced(&nowhere)[..], &[("OTEL_EXPORTER_OTLP_TIMEOUT", "500")]].concat();
    let mut receiver = cell.receiver(&settings).await;
    let downstreamer = cell.downstreamer(&backend, &settings).await;
    for _ in 0..10 {
        assert_eq!(post(receiver.address(), &Webhook::any()).await.status, 200);
    }
    until("all are delivered", SOON, async || backend.delivered() == 10).await;
    for service in [&receiver, &downstreamer] {
        let dropped = async || service.metric(DROPPED).await == Some(20.0);
        until("its spans are counted", SOON, dropped).await;
    }
    receiver.sigterm();
    assert!(receiver.exit(SOON).await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spans_that_wait_are_sent_at_the_end() {
    let cell = Cell::shared();
    let _redis = cell.redis(&[]).await;
    let collector = Collector::start().await;
    let url = collector.url();
    let settings = [("OTEL_EXPORTER_OTLP_ENDPOINT", &*url), ("OTEL_BSP_SCHEDULE_DELAY", "600000")];
    let mut receiver = cell.receiver(&settings).await;
    assert_eq!(post(receiver.address(), &Webhook::any()).await.status, 200);
    receiver.sigterm();
    assert!(receiver.exit(SOON).await.success());
    let spans = collector.spans();
    assert_eq!(named(&spans, "store").parent, named(&spans, "receive").id);
}
