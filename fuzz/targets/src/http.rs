//! Bytes on a connection → the receiver's own connection and handler → verified, packed, unpacked.
//!
//! Properties: each answer is HTTP/1 with a status of the contract. The only 5xx is the 508 of the
//! loop check. As many webhooks are stored as requests are answered with 200. Each is signed, and
//! its unpacked headers contain none that belong to the connection. The connection ends.

use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use request_receiver::admit::Admission;
use request_receiver::batch::Batches;
use request_receiver::connection::{self, Serving};
use request_receiver::metrics::ReceiverMetrics;
use request_receiver::phase::{Phase, PhaseTimes};
use request_receiver::receive::RequestHandler;
use request_receiver::reply::OUTCOMES;
use request_receiver::secrets::ClientSecrets;
use request_receiver::settings::ReceiverArgs;
use request_receiver::shared::ShardContext;
use request_receiver::shutdown::Shutdown;
use request_receiver::store::Store;
use request_receiver::stream::Stream;
use request_receiver::tls::Handshakes;
use request_receiver::topics::TopicMetrics;
use spillway_process::{Background, Checker, ServerArgs as _};
use spillway_webhook::pack::{Pack, Record, Records};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::runtime::Runtime;

use crate::packed;
use crate::signed::{SECRET, filled, sign};

const STATUSES: [u16; 11] = [100, 200, 400, 401, 405, 408, 413, 414, 417, 431, 508];
/// Timeout of each phase. Nothing waits for a clock here, because the sender ends its side when all
/// is sent.
const PATIENCE: Duration = Duration::from_secs(10);

struct Bench {
    runtime: Runtime,
    serving: Arc<Serving>,
    batches: Arc<Batches>,
}

thread_local! {
    static BENCH: Bench = Bench::new();
}

/// Runs the target; see the module documentation.
pub fn run(data: &[u8]) {
    BENCH.with(|bench| bench.play(&filled(data)));
}

impl Bench {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        let flags = ["--require-timestamp", "false", "--max-body", "64KiB"];
        let secret = ["request-receiver", "--shopify-client-secret", SECRET];
        let written = ReceiverArgs::try_parse_from([&secret[..], &flags[..]].concat());
        let mut checker = Checker::default();
        let settings = written.expect("flags that exist").check(&mut checker);
        let settings = Arc::new(checker.finish(settings).expect("settings that are good"));
        let metrics = ReceiverMetrics::new(&OUTCOMES);
        let topics = TopicMetrics::new(&metrics.registry);
        let batches = Arc::new(Batches::new(topics.clone()));
        let store = Store::usable_one();
        let shared = ShardContext {
            admission: Admission::new(settings.in_flight_bytes_max),
            store: store.clone(),
            secrets: Arc::new(
                ClientSecrets::new(settings.secrets.clone(), None).expect("random numbers"),
            ),
            apps: None,
            ignored: Arc::default(),
            shares: Arc::default(),
            metrics: metrics.clone(),
            topics,
            tls: None,
            shutdown: Shutdown::default(),
            background: Background::default(),
            settings,
        };
        let serving = Arc::new(Serving {
            metrics,
            shutdown: Shutdown::default(),
            times: PhaseTimes { headers: PATIENCE, idle: PATIENCE },
            tls: None,
            handshakes: Handshakes::default(),
            handler: Arc::new(RequestHandler::new(shared, store, batches.clone())),
        });
        Self { runtime, serving, batches }
    }

    fn play(&self, request: &[u8]) {
        let (mut stored, mut answers) = (Vec::new(), Vec::new());
        self.runtime.block_on(async {
            let (near, far) = UnixStream::pair().expect("two ends of a connection");
            let served = connection::serve(Stream::Unix(far), Phase::new(), self.serving.clone());
            let (mut incoming, mut outgoing) = near.into_split();
            let sending = async {
                // The request may be refused before it is sent completely.
                outgoing.write_all(request).await.ok();
                outgoing.shutdown().await.ok();
            };
            let reading = async { incoming.read_to_end(&mut answers).await.ok() };
            let all = async { tokio::join!(served, sending, reading) };
            tokio::select! {
                ended = tokio::time::timeout(PATIENCE, all) => assert!(ended.is_ok(), "it hangs"),
                () = self.store(&mut stored) => {}
            }
        });
        let statuses = statuses(&answers);
        assert!(answers.is_empty() || answers.starts_with(b"HTTP/1."));
        assert!(statuses.iter().all(|status| STATUSES.contains(status)), "{statuses:?}");
        let promised = statuses.iter().filter(|status| **status == 200).count();
        assert_eq!(promised, stored.len(), "{statuses:?}");
        stored.iter().for_each(check);
    }

    /// Stores the batches that wait, as a batcher does, forever.
    async fn store(&self, stored: &mut Vec<Record>) {
        while self.batches.arrived().await {
            while let Some(batch) = self.batches.seal() {
                unpack(batch.records(), stored);
                self.batches.complete(batch, Ok(()));
            }
        }
    }
}

fn unpack(records: &Records, stored: &mut Vec<Record>) {
    let pack = Pack::decode(&packed(records)).expect("our own pack");
    assert_eq!(pack.count(), records.count());
    stored.extend((0..pack.count()).map(|index| pack.record(index)));
}

fn check(record: &Record) {
    let named = |names: &[&str]| {
        let mut headers = record.headers.iter();
        headers.any(|(name, _)| names.iter().any(|other| name == other.as_bytes()))
    };
    assert!(!named(&["connection", "transfer-encoding", "content-length", "te", "upgrade"]));
    assert!(!record.headers.iter().any(|(name, _)| name.starts_with(b"spillway-")));
    let signature = sign(&record.body);
    let is_signature = |(name, value): &(bytes::Bytes, bytes::Bytes)| {
        name.ends_with(b"shopify-hmac-sha256") && value == signature.as_bytes()
    };
    assert!(record.headers.iter().any(is_signature), "stored without a good signature");
}

/// Returns the statuses of all answers. No body of the receiver looks like a status line. A request
/// by HTTP/1.0 is answered by HTTP/1.0.
fn statuses(answers: &[u8]) -> Vec<u16> {
    let begins = |line: &[u8]| line.starts_with(b"HTTP/1.1 ") || line.starts_with(b"HTTP/1.0 ");
    let lines = answers.windows(12).filter(|window| begins(window));
    lines.filter_map(|line| std::str::from_utf8(&line[9..]).ok()?.parse().ok()).collect()
}
