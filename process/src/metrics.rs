//! Registry of a process, and the text format for Prometheus.

use prometheus::process_collector::ProcessCollector;
use prometheus::{IntGauge, Opts, Registry, TextEncoder};

use crate::version::{PACKAGE, REVISION};

/// Creates a registry with `spillway_build_info` and `process_*`.
///
/// # Panics
/// Only if one of our metrics is registered twice, which is a bug.
pub fn registry(component: &str) -> Registry {
    let registry = Registry::new();
    let info = Opts::new("spillway_build_info", "Version of this process; always 1.")
        .const_label("component", component)
        .const_label("version", PACKAGE)
        .const_label("revision", REVISION);
    let info = IntGauge::with_opts(info).expect("BUG: a constant name is valid");
    info.set(1);
    register(&registry, &info);
    registry
        .register(Box::new(ProcessCollector::for_self()))
        .expect("BUG: registered once per registry");
    registry
}

/// Registers a collector and returns it.
///
/// # Panics
/// When a metric of its name is registered already, which is a bug.
pub fn register<C: prometheus::core::Collector + Clone + 'static>(
    registry: &Registry,
    collector: &C,
) -> C {
    registry.register(Box::new(collector.clone())).expect("BUG: two metrics of one name");
    collector.clone()
}

/// Returns the registry's metrics in Prometheus' text format.
pub fn encode(registry: &Registry) -> String {
    TextEncoder::new().encode_to_string(&registry.gather()).unwrap_or_else(|error| {
        tracing::error!(%error, "the metrics could not be written");
        String::new()
    })
}
