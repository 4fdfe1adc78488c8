//! The exporter: OTLP over HTTP, by the crates of the OpenTelemetry project. All that depends on them
//! is here and in [`crate::span`].
//!
//! Every setting is handed over, so that none is read twice in two ways. What has no setting here,
//! the exporter reads from the environment itself, such as `OTEL_EXPORTER_OTLP_TRACES_HEADERS`.

use std::collections::HashMap;
use std::fmt::Display;
use std::time::Duration;

use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_http::hyper::HyperClient;
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SpanExporter as _;
use rustls::{ClientConfig, RootCertStore};
use spillway_process::start::Misconfigured;
use spillway_process::trace_args::TraceSettings;

/// Longest time for connecting. TLS is part of the time of an export.
const CONNECT_MAX: Duration = Duration::from_secs(2);

/// Exporter for the spans of `program`.
///
/// # Errors
/// If a setting turns out to be wrong, or this machine knows no authority for https.
pub(crate) fn exporter(
    settings: &TraceSettings,
    program: &'static str,
) -> anyhow::Result<SpanExporter> {
    let client = HyperClient::new(connector(&settings.endpoint)?, settings.timeout, None);
    let headers: HashMap<String, String> = settings.headers.iter().cloned().collect();
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(client)
        .with_protocol(Protocol::HttpBinary)
        .with_endpoint(settings.endpoint.clone())
        .with_timeout(settings.timeout)
        .with_headers(headers)
        .build();
    let mut exporter = exporter.map_err(misconfigured)?;
    exporter.set_resource(&resource(settings, program));
    Ok(exporter)
}

/// Scope of all spans: the library that made them.
pub(crate) fn scope() -> InstrumentationScope {
    InstrumentationScope::builder("spillway").with_version(env!("CARGO_PKG_VERSION")).build()
}

/// Attributes of this service. Those that are set take precedence.
fn resource(settings: &TraceSettings, program: &'static str) -> Resource {
    let set = settings.attributes.iter();
    let set = set.map(|(key, value)| KeyValue::new(key.clone(), value.clone()));
    let name = settings.service_name.clone().unwrap_or_else(|| program.to_owned());
    Resource::builder_empty()
        .with_attribute(KeyValue::new("service.namespace", "spillway"))
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .with_attributes(set)
        .with_service_name(name)
        .build()
}

fn connector(endpoint: &str) -> anyhow::Result<HttpsConnector<HttpConnector>> {
    let mut roots = RootCertStore::empty();
    if endpoint.starts_with("https") {
        let found = rustls_native_certs::load_native_certs();
        let (added, _) = roots.add_parsable_certificates(found.certs);
        if added == 0 {
            return Err(misconfigured(
                "this machine knows no certificate authority; install ca-certificates or set \
                 SSL_CERT_FILE",
            )
            .into());
        }
    }
    let tls = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_connect_timeout(Some(CONNECT_MAX));
    let https = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
    Ok(https.enable_http1().wrap_connector(http))
}

fn misconfigured(problem: impl Display) -> Misconfigured {
    Misconfigured(format!("OTEL_EXPORTER_OTLP_ENDPOINT: {problem}"))
}
