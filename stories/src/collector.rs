//! A collector of traces: takes OTLP over HTTP as an OpenTelemetry Collector does, and keeps the spans.
//!
//! `OTEL_COLLECTOR` names the program of a real one. It is put in front then: what it has decoded, checked
//! and encoded again is what is kept.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, Span};
use prost::Message;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

use crate::port;
use crate::receipt::RequestHead;
use crate::until::{until, until_some};
use crate::wire::Incoming;

const SOON: Duration = Duration::from_secs(60);

/// A running collector. Once dropped, it accepts no more connections.
#[derive(Debug)]
pub struct Collector {
    address: SocketAddr,
    spans: Arc<Mutex<Vec<Collected>>>,
    /// A real collector, which exports to this one. Ends with it.
    front: Option<Child>,
    accepting: JoinHandle<()>,
}

/// One span, with its ids in hexadecimal.
#[derive(Clone, Debug)]
pub struct Collected {
    /// `service.name` of the process.
    pub service: String,
    /// Name.
    pub name: String,
    /// Id of the trace.
    pub trace: String,
    /// Id of the span.
    pub id: String,
    /// Id of the parent; empty if there is none.
    pub parent: String,
    /// Value of `tracestate`.
    pub state: String,
    /// Start and end, in nanoseconds since the Unix epoch.
    pub times: [u64; 2],
    /// Attributes, as texts.
    pub attributes: BTreeMap<String, String>,
    /// Message of the status, if the span failed.
    pub error: Option<String>,
    /// Header `x-key` of the export.
    pub key: String,
}

impl Collector {
    /// Starts a collector.
    pub async fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("bind a collector");
        let address = listener.local_addr().expect("the collector's address");
        let spans = Arc::new(Mutex::new(Vec::new()));
        let accepting = tokio::spawn(accept(listener, Arc::clone(&spans)));
        let mut collector = Self { address, spans, front: None, accepting };
        if let Some(program) = std::env::var_os("OTEL_COLLECTOR") {
            let (front, address) = start_front(&program, address).await;
            (collector.front, collector.address) = (Some(front), address);
        }
        collector
    }

    /// Returns true if the headers of an export are kept. A real collector passes none on.
    pub fn keeps_headers(&self) -> bool {
        self.front.is_none()
    }

    /// Base URL, for `OTEL_EXPORTER_OTLP_ENDPOINT`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// All spans so far, in order of their starts.
    pub fn spans(&self) -> Vec<Collected> {
        let mut spans = self.spans.lock().expect("nobody panicked").clone();
        spans.sort_by_key(|span| span.times);
        spans
    }

    /// Waits for as many spans. Returns all.
    pub async fn reaches(&self, count: usize) -> Vec<Collected> {
        let what = format!("{count} spans");
        until_some(&what, SOON, async || Some(self.spans()).filter(|spans| spans.len() >= count))
            .await
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Collected {
    fn of(resource: &ResourceSpans, span: &Span, key: &str) -> Self {
        let service = resource.resource.as_ref().map(|resource| texts(&resource.attributes));
        let service = service.and_then(|mut attributes| attributes.remove("service.name"));
        let status = span.status.as_ref().filter(|status| status.code == 2);
        Self {
            service: service.unwrap_or_default(),
            name: span.name.clone(),
            trace: hex(&span.trace_id),
            id: hex(&span.span_id),
            parent: hex(&span.parent_span_id),
            state: span.trace_state.clone(),
            times: [span.start_time_unix_nano, span.end_time_unix_nano],
            attributes: texts(&span.attributes),
            error: status.map(|status| status.message.clone()),
            key: key.to_owned(),
        }
    }

    /// `traceparent` of what this span caused.
    pub fn traceparent(&self) -> String {
        format!("00-{}-{}-01", self.trace, self.id)
    }

    /// Value of an attribute; empty if there is none.
    pub fn attribute(&self, key: &str) -> &str {
        self.attributes.get(key).map_or("", String::as_str)
    }
}

/// Starts an OpenTelemetry Collector that exports to `to`, each export before it answers.
async fn start_front(program: &OsStr, to: SocketAddr) -> (Child, SocketAddr) {
    let address = port::free();
    let config = format!(
        "receivers: {{otlp: {{protocols: {{http: {{endpoint: '{address}'}}}}}}}}
exporters:
  otlphttp:
    endpoint: http://{to}
    compression: none
    sending_queue: {{enabled: false}}
    retry_on_failure: {{enabled: false}}
service:
  telemetry: {{metrics: {{level: none}}}}
  pipelines: {{traces: {{receivers: [otlp], exporters: [otlphttp]}}}}
"
    );
    let child = Command::new(program)
        .args(["--config", &format!("yaml:{config}")])
        .kill_on_drop(true)
        .spawn()
        .expect("start the program that OTEL_COLLECTOR names");
    until("the collector listens", SOON, async || TcpStream::connect(address).await.is_ok()).await;
    (child, address)
}

async fn accept(listener: TcpListener, spans: Arc<Mutex<Vec<Collected>>>) {
    while let Ok((stream, _)) = listener.accept().await {
        let spans = Arc::clone(&spans);
        // The other side broke the connection; what was read is kept.
        tokio::spawn(async move { serve(stream, &spans).await.ok() });
    }
}

async fn serve(stream: TcpStream, spans: &Mutex<Vec<Collected>>) -> io::Result<()> {
    let (read, mut outgoing) = stream.into_split();
    let mut incoming = Incoming::new(read);
    while let Some(head) = incoming.head().await? {
        let head = RequestHead::parse(&head);
        let body = incoming.body(head.body_bytes()).await?;
        assert_eq!((&*head.method, &*head.target), ("POST", "/v1/traces"));
        assert_eq!(head.headers.text("content-type"), Some("application/x-protobuf"));
        let key = head.headers.text("x-key").unwrap_or_default();
        let request = ExportTraceServiceRequest::decode(body).expect("an export of traces");
        let all = request.resource_spans.iter().flat_map(|resource| {
            let of_resource = resource.scope_spans.iter().flat_map(|scope| &scope.spans);
            of_resource.map(move |span| Collected::of(resource, span, key))
        });
        spans.lock().expect("nobody panicked").extend(all);
        let answer =
            "HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 0\r\n\r\n";
        outgoing.write_all(answer.as_bytes()).await?;
    }
    Ok(())
}

fn texts(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |attribute: &KeyValue| {
        let value = attribute.value.as_ref().and_then(|value| value.value.as_ref());
        let value = match value {
            Some(Value::StringValue(text)) => text.clone(),
            Some(Value::IntValue(number)) => number.to_string(),
            other => format!("{other:?}"),
        };
        (attribute.key.clone(), value)
    };
    attributes.iter().map(text).collect()
}

fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}
