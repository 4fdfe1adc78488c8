//! Export of spans, in a task of its own: it gathers them into batches and sends each.
//!
//! Bounded: spans that wait by the queue, one export by its time, the end by [`FLUSH_MAX`]. A batch
//! that could not be sent is dropped and counted. At the end, so is all that waits for a collector
//! that was away.

use std::mem::{replace, take};
use std::time::Duration;

use opentelemetry::InstrumentationScope;
use opentelemetry_sdk::trace::{SpanData, SpanExporter};
use prometheus::{IntCounter, Registry};
use spillway_process::metrics::register;
use spillway_process::trace_args::{BatchSettings, TraceSettings};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::otlp;
use crate::span::EndedSpan;
use crate::tracer::Tracer;

/// Time between two looks at the queue while a batch fills. To wake for each span would cost the
/// thread that ends it more than all else about the span.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Time to send what waits at the end of the process. A collector that works takes milliseconds, and
/// the next process waits for this one: a receiver does not listen any more.
const FLUSH_MAX: Duration = Duration::from_millis(500);

/// Export of a process' spans.
#[derive(Default)]
pub struct TraceExport {
    running: Option<RunningExport>,
}

struct RunningExport {
    tracer: Tracer,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

struct ExportTask<E> {
    ended: mpsc::Receiver<EndedSpan>,
    exporter: E,
    scope: InstrumentationScope,
    batch: BatchSettings,
    dropped: IntCounter,
    endpoint: ExportEndpoint,
    /// True from a failed export to the next one that succeeds.
    is_failing: bool,
}

/// Place that spans are sent to, for the log.
#[derive(Debug, Clone)]
struct ExportEndpoint {
    setting: &'static str,
    /// URL without its query, which may hold a token. It has no user or password.
    url: String,
}

impl ExportEndpoint {
    fn of(settings: &TraceSettings) -> Self {
        let url = settings.endpoint.split('?').next().unwrap_or_default().to_owned();
        Self { setting: settings.endpoint_setting, url }
    }
}

impl TraceExport {
    /// Starts to export the spans of `program`. Without settings, nothing is recorded.
    ///
    /// # Errors
    /// If a setting turns out to be wrong, or this machine knows no authority for https.
    pub fn start(
        settings: Option<&TraceSettings>,
        program: &'static str,
        registry: &Registry,
    ) -> anyhow::Result<Self> {
        let dropped = IntCounter::new(
            "spillway_trace_spans_dropped_total",
            "Spans that were not exported: the queue was full, or the collector did not take them.",
        );
        let dropped = register(registry, &dropped.expect("BUG: a constant name is valid"));
        let Some(settings) = settings else { return Ok(Self::default()) };
        let (sender, ended) = mpsc::channel(settings.batch.queue_max);
        let task = ExportTask {
            ended,
            exporter: otlp::exporter(settings, program)?,
            scope: otlp::scope(),
            batch: settings.batch,
            dropped: dropped.clone(),
            endpoint: ExportEndpoint::of(settings),
            is_failing: false,
        };
        let stop = CancellationToken::new();
        let task = tokio::spawn(task.run(stop.clone()));
        let tracer = Tracer::new(settings.sampling, sender, dropped);
        Ok(Self { running: Some(RunningExport { tracer, stop, task }) })
    }

    /// Tracer of this process, if anything is recorded.
    pub fn tracer(&self) -> Option<Tracer> {
        self.running.as_ref().map(|running| running.tracer.clone())
    }

    /// Sends what waits, within a bound of time. Drops it at once if the last export failed.
    pub async fn finish(self) {
        let Some(RunningExport { stop, mut task, .. }) = self.running else { return };
        stop.cancel();
        if timeout(FLUSH_MAX, &mut task).await.is_err() {
            task.abort();
            tracing::warn!("spans were left behind: the collector did not take them in time");
        }
    }
}

impl<E: SpanExporter + 'static> ExportTask<E> {
    /// Exports until `stop`, and then what still waits.
    async fn run(mut self, stop: CancellationToken) {
        let mut spans = Vec::new();
        loop {
            self.gather(&mut spans, &stop).await;
            if spans.is_empty() {
                return;
            }
            self.export(take(&mut spans), &stop).await;
        }
    }

    /// Gathers a batch. It is empty once `stop` has come and nothing waits any more.
    async fn gather(&mut self, spans: &mut Vec<EndedSpan>, stop: &CancellationToken) {
        tokio::select! {
            biased;
            () = stop.cancelled(), if !self.ended.is_closed() => self.ended.close(),
            first = self.ended.recv() => spans.extend(first),
        }
        let due = Instant::now() + self.batch.delay;
        while !self.ended.is_closed()
            && spans.len() + self.ended.len() < self.batch.spans_max
            && Instant::now() < due
        {
            tokio::select! {
                biased;
                () = stop.cancelled() => self.ended.close(),
                () = sleep(LOOK_EVERY.min(self.batch.delay)) => {}
            }
        }
        while spans.len() < self.batch.spans_max
            && let Ok(span) = self.ended.try_recv()
        {
            spans.push(span);
        }
    }

    /// Sends a batch. After an export that failed, `stop` ends it: the end of the process does not
    /// wait for retries.
    async fn export(&mut self, spans: Vec<EndedSpan>, stop: &CancellationToken) {
        let count = u64::try_from(spans.len()).unwrap_or(u64::MAX);
        let spans: Vec<SpanData> =
            spans.into_iter().map(|span| span.into_data(&self.scope)).collect();
        let is_failing = self.is_failing;
        let problem = tokio::select! {
            biased;
            () = stop.cancelled(), if is_failing => Some("the process ends".to_owned()),
            exported = timeout(self.batch.timeout, self.exporter.export(spans)) => match exported {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(error.to_string()),
                Err(_) => Some("no answer in time".to_owned()),
            },
        };
        let Some(problem) = problem else {
            if take(&mut self.is_failing) {
                tracing::info!("spans are exported again");
            }
            return;
        };
        self.dropped.inc_by(count);
        if !replace(&mut self.is_failing, true) {
            let ExportEndpoint { setting, url } = &self.endpoint;
            tracing::warn!(
                problem,
                endpoint = url,
                setting,
                "spans are dropped: they cannot be exported"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
    use spillway_process::trace_args::Sampling;

    use super::*;
    use crate::span::SpanRole;

    const SECOND: Duration = Duration::from_secs(1);

    /// Collector of the sizes of batches. It takes none while `is_away`, and hangs while `hangs`.
    #[derive(Debug, Clone, Default)]
    struct Collector(Arc<Mutex<CollectorState>>);

    #[derive(Debug, Default)]
    struct CollectorState {
        batches: Vec<usize>,
        is_away: bool,
        hangs: bool,
    }

    impl SpanExporter for Collector {
        async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
            let (is_away, hangs) = {
                let mut state = self.0.lock().expect("nobody panicked");
                state.batches.push(batch.len());
                (state.is_away, state.hangs)
            };
            if hangs {
                std::future::pending::<()>().await;
            }
            if is_away { Err(OTelSdkError::InternalFailure("away".to_owned())) } else { Ok(()) }
        }
    }

    struct Exported {
        export: TraceExport,
        collector: Collector,
        dropped: IntCounter,
    }

    impl Exported {
        /// Export with room for ten spans, in batches of four.
        fn start() -> Self {
            let batch =
                BatchSettings { delay: SECOND, timeout: 3 * SECOND, queue_max: 10, spans_max: 4 };
            let (sender, ended) = mpsc::channel(batch.queue_max);
            let dropped = IntCounter::new("dropped", "Spans.").expect("a good name");
            let collector = Collector::default();
            let task = ExportTask {
                ended,
                exporter: collector.clone(),
                scope: otlp::scope(),
                batch,
                dropped: dropped.clone(),
                endpoint: ExportEndpoint { setting: "X", url: String::new() },
                is_failing: false,
            };
            let stop = CancellationToken::new();
            let task = tokio::spawn(task.run(stop.clone()));
            let all = Sampling { is_parent_based: true, ratio: 1.0 };
            let tracer = Tracer::new(all, sender, dropped.clone());
            let export = TraceExport { running: Some(RunningExport { tracer, stop, task }) };
            Self { export, collector, dropped }
        }

        fn end(&self, count: usize) {
            let tracer = self.export.tracer().expect("it runs");
            for _ in 0..count {
                let span =
                    tracer.begin("receive", SpanRole::Server, None).expect("all are recorded");
                tracer.end(span, None);
            }
        }

        fn set(&self, set: impl FnOnce(&mut CollectorState)) {
            set(&mut self.collector.0.lock().expect("nobody panicked"));
        }

        fn batches(&self) -> Vec<usize> {
            self.collector.0.lock().expect("nobody panicked").batches.clone()
        }
    }

    #[test]
    fn the_log_names_the_endpoint_and_its_setting_without_a_query() {
        let settings = TraceSettings {
            endpoint: "http://collector:4318/v1/traces?key=hush".to_owned(),
            endpoint_setting: "OTEL_EXPORTER_OTLP_ENDPOINT",
            headers: Vec::new(),
            timeout: SECOND,
            service_name: None,
            attributes: Vec::new(),
            sampling: Sampling { is_parent_based: true, ratio: 1.0 },
            batch: BatchSettings { delay: SECOND, timeout: SECOND, queue_max: 1, spans_max: 1 },
        };
        let ExportEndpoint { setting, url } = ExportEndpoint::of(&settings);
        assert_eq!(setting, "OTEL_EXPORTER_OTLP_ENDPOINT");
        assert_eq!(url, "http://collector:4318/v1/traces");
    }

    #[tokio::test(start_paused = true)]
    async fn spans_wait_for_others_but_not_for_long() {
        let exported = Exported::start();
        exported.end(9);
        sleep(SECOND / 2).await;
        assert_eq!(exported.batches(), [4, 4]);
        sleep(SECOND).await;
        assert_eq!(exported.batches(), [4, 4, 1]);
        assert_eq!(exported.dropped.get(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_collector_does_not_take_is_counted_and_not_kept() {
        let exported = Exported::start();
        exported.set(|collector| collector.is_away = true);
        exported.end(4);
        sleep(SECOND).await;
        assert_eq!(exported.dropped.get(), 4);
        exported.set(|collector| collector.is_away = false);
        exported.end(4);
        sleep(SECOND).await;
        assert_eq!((exported.batches(), exported.dropped.get()), (vec![4, 4], 4));
    }

    #[tokio::test(start_paused = true)]
    async fn a_collector_that_hangs_delays_nobody() {
        let exported = Exported::start();
        exported.set(|collector| collector.hangs = true);
        exported.end(4);
        sleep(SECOND).await;
        // Four are under way, ten wait, and four find no room.
        exported.end(14);
        assert_eq!(exported.dropped.get(), 4);
        sleep(3 * SECOND).await;
        assert_eq!(exported.dropped.get(), 8);
    }

    #[tokio::test(start_paused = true)]
    async fn what_waits_is_sent_at_the_end() {
        let exported = Exported::start();
        exported.end(6);
        let collector = exported.collector.clone();
        exported.export.finish().await;
        assert_eq!(collector.0.lock().expect("nobody panicked").batches, [4, 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_does_not_wait_for_a_collector_that_hangs() {
        let exported = Exported::start();
        exported.set(|collector| collector.hangs = true);
        exported.end(1);
        let began = Instant::now();
        exported.export.finish().await;
        assert_eq!(began.elapsed(), FLUSH_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_does_not_wait_for_a_collector_that_was_away() {
        for is_export_under_way in [false, true] {
            let exported = Exported::start();
            exported.set(|collector| collector.is_away = true);
            exported.end(4);
            sleep(SECOND).await;
            assert_eq!(exported.dropped.get(), 4);
            // As an exporter does that tries again and again.
            exported.set(|collector| collector.hangs = true);
            exported.end(6);
            if is_export_under_way {
                sleep(SECOND).await;
                assert_eq!(exported.batches(), [4, 4]);
            }
            let Exported { export, dropped, .. } = exported;
            let began = Instant::now();
            export.finish().await;
            assert_eq!((began.elapsed(), dropped.get()), (Duration::ZERO, 10));
        }
    }
}
