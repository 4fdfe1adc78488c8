//! Names of the settings of all programs, to find a mistyped one in an env file that all share.

/// Settings of every program, and variables that the libraries read. Stories compare the list with
/// the programs.
pub const SETTING_NAMES: &[&str] = &[
    "ACK_TIMEOUT",
    "ADMIN_LISTEN",
    "APPS_FILE",
    "ARCHIVE_KEEP",
    "ARCHIVE_KEY_FILE",
    "ARCHIVE_MAX_DELAY",
    "ARCHIVE_OBJECT_SIZE",
    "ARCHIVE_URL",
    "AUDIT_KEEP",
    "BACKEND_CA_FILE",
    "BACKEND_CERT_FILE",
    "BACKEND_HEADERS_FILE",
    "BACKEND_KEY_FILE",
    "BODY_KINDS",
    "BODY_TIMEOUT",
    "COALESCE_MAX_WAIT",
    "COALESCE_TOPICS",
    "CONSOLE_ANONYMOUS_ROLE",
    "CONSOLE_HOSTS",
    "CONSOLE_INSECURE",
    "CONSOLE_LISTEN",
    "CONSOLE_TLS_CERT_FILE",
    "CONSOLE_TLS_KEY_FILE",
    "CONSOLE_TOKENS_FILE",
    "CONSOLE_USERS_FILE",
    "CONSUMER",
    "DEAD_KEEP",
    "DEAD_MAX",
    "DEAD_STATUSES",
    "DEDUP_MEMORY",
    "DEDUP_WINDOW",
    "DELIVERY_THREADS",
    "DELIVERY_TIMEOUT",
    "DEMO_LISTEN",
    "DOWNSTREAMER_ADMIN_LISTEN",
    "DOWNSTREAM_APP_URL",
    "DOWNSTREAM_HOST",
    "EXCEPT_APPS",
    "EXCEPT_PATHS",
    "EXCEPT_SHOPS",
    "EXCEPT_TOPICS",
    "EXIT_IF_UNAVAILABLE",
    "FETCH_PAYLOADS",
    "FORGET_CELLS",
    "FORGET_PATIENCE",
    "FORGET_SETTLED_AFTER",
    "HEADER_TIMEOUT",
    "IDLE_TIMEOUT",
    "IGNORE_SHOPS_FILE",
    "IGNORE_TOPICS",
    "INDEX_MEMORY",
    "KAFKA_BOOTSTRAP_SERVERS",
    "KAFKA_FORMAT",
    "KAFKA_KEY",
    "KAFKA_PRODUCER_ADMIN_LISTEN",
    "KAFKA_PROPERTIES_FILE",
    "KAFKA_TOPIC",
    "KAFKA_TX_ID",
    "KAFKA_URL",
    "LISTEN",
    "LISTEN_GROUP",
    "LISTEN_MODE",
    "LISTEN_TLS",
    "LOG_FORMAT",
    "MAX_BODY",
    "MAX_CLOCK_SKEW",
    "MAX_CONCURRENCY",
    "MAX_CONNECTIONS",
    "MAX_EVENT_AGE",
    "MAX_IN_FLIGHT",
    "MAX_RATE",
    "METRICS_TOKEN_FILE",
    "MIN_CONCURRENCY",
    "ONESHOT",
    "ONLY_APPS",
    "ONLY_PATHS",
    "ONLY_SHOPS",
    "ONLY_TOPICS",
    "ORDER_BY",
    "OTEL_BSP_EXPORT_TIMEOUT",
    "OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
    "OTEL_BSP_MAX_QUEUE_SIZE",
    "OTEL_BSP_SCHEDULE_DELAY",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_HEADERS",
    "OTEL_EXPORTER_OTLP_PROTOCOL",
    "OTEL_EXPORTER_OTLP_TIMEOUT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_RESOURCE_ATTRIBUTES",
    "OTEL_SDK_DISABLED",
    "OTEL_SERVICE_NAME",
    "OTEL_TRACES_SAMPLER",
    "OTEL_TRACES_SAMPLER_ARG",
    "PARK_AFTER",
    "PAYLOAD_HOSTS",
    "PAYLOAD_MAX",
    "PRIORITY_TOPICS",
    "PROMETHEUS_SELECTOR",
    "PROMETHEUS_TOKEN_FILE",
    "PROMETHEUS_URL",
    "RECEIVER_ADMIN_LISTEN",
    "REDACT_WITHIN",
    "REDIS_CA_FILE",
    "REDIS_CERT_FILE",
    "REDIS_DURABILITY",
    "REDIS_KEY_FILE",
    "REDIS_PASSWORD_FILE",
    "REDIS_PREFIX",
    "REDIS_URL",
    "REQUIRE_DURABLE",
    "REQUIRE_TIMESTAMP",
    "RETRY_FIRST",
    "RETRY_FOR",
    "RETRY_LONGEST",
    "RETRY_REFUSED_FOR",
    "RUST_LOG",
    "SHOPIFY_CLIENT_SECRET",
    "SHOPIFY_CLIENT_SECRET_FILE",
    "SHOP_MAX_CONCURRENCY",
    "SHOP_MAX_QUEUED",
    "SHOP_MAX_RATE",
    "SHOP_SECRETS_DIR",
    "SHOP_SECRETS_RATE",
    "SHOP_SECRETS_STALE_MAX",
    "SHOP_SECRETS_TOKEN_FILE",
    "SHOP_SECRETS_TTL",
    "SHOP_SECRETS_URL",
    "SHUTDOWN_TIMEOUT",
    "SILENT_AFTER",
    "SPILL_DIR",
    "SPILL_MAX",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "STALE_UPDATES",
    "START_AT",
    "SUPPRESS_MEMORY",
    "SUPPRESS_TOPICS",
    "TLS_CERT_FILE",
    "TLS_KEY_FILE",
    "TRUSTED_PROXIES",
    "TRUSTED_USER_HEADER",
];

/// Most letters by which a mistyped name differs. With more, names of other programs would be
/// taken for mistakes.
const DISTANCE_MAX: usize = 2;

/// Returns the setting that was probably meant, if `name` is none.
pub(crate) fn meant_by(name: &str) -> Option<&'static str> {
    if SETTING_NAMES.contains(&name) {
        return None;
    }
    let near = SETTING_NAMES.iter().map(|known| (distance(name, known), *known));
    let (_, known) = near.filter(|(distance, _)| *distance <= DISTANCE_MAX).min()?;
    Some(known)
}

/// Levenshtein distance: letters to insert, remove or replace.
fn distance(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, letter) in one.bytes().enumerate() {
        let mut diagonal = i;
        row[0] = i + 1;
        for (j, wanted) in other.bytes().enumerate() {
            let replaced = diagonal + usize::from(letter != wanted);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_setting_is_recognised_and_a_foreign_variable_is_not() {
        for (name, meant) in [
            ("MAX_BODYY", Some("MAX_BODY")),
            ("REDIS_ULR", Some("REDIS_URL")),
            ("SHOPIFY_CLIENT_SECRETS_FILE", Some("SHOPIFY_CLIENT_SECRET_FILE")),
            ("MAX_BODY", None),
            ("RUST_LOG", None),
            ("SSL_CERT_FILE", None),
            ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", None),
            ("DATABASE_URL", None),
            ("PATH", None),
        ] {
            assert_eq!(meant_by(name), meant, "{name}");
        }
    }

    #[test]
    fn names_are_sorted_and_each_is_there_once() {
        assert!(SETTING_NAMES.is_sorted_by(|one, other| one < other));
    }

    #[test]
    fn the_distance_counts_letters() {
        for (one, other, expected) in
            [("", "AB", 2), ("AB", "AB", 0), ("KITTEN", "SITTING", 3), ("ABC", "AC", 1)]
        {
            assert_eq!(distance(one, other), expected, "{one} {other}");
        }
    }
}
