//! The archiver's settings, as set and as checked.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use spillway_archive::args::ArchiveArgs;
use spillway_archive::keys::ArchiveKeys;
use spillway_archive::object::OBJECT_SIZE_MAX;
use spillway_archive::store::ArchiveUrl;
use spillway_consumer::ConsumerSettings;
use spillway_process::process_args::ProcessSettings;
use spillway_process::{Checker, ProcessArgs};
use spillway_queue::consumers::{ConsumerKind, StartAt};

const KIB: u64 = 1 << 10;
const DAY: u64 = 86_400;

/// Writes queued webhooks into an archive, a directory or a bucket, each exactly once. Every setting is a flag
/// and an environment variable.
#[derive(Debug, Parser)]
#[command(name = "archiver", version = spillway_process::version(), max_term_width = 100)]
pub struct ArchiverArgs {
    #[command(flatten)]
    common: ProcessArgs,

    #[command(flatten)]
    archive: ArchiveArgs,

    /// Bytes at which an object is written [64KiB to 64MiB]
    #[arg(long, env = "ARCHIVE_OBJECT_SIZE", default_value = "32MiB")]
    archive_object_size: String,

    /// Longest time that a webhook waits for an object to be full [1s to 1h]
    #[arg(long, env = "ARCHIVE_MAX_DELAY", default_value = "60s")]
    archive_max_delay: String,

    /// Time after which objects are deleted. Not set: they are kept for ever [24h to 876000h]
    #[arg(long, env = "ARCHIVE_KEEP")]
    archive_keep: Option<String>,

    /// Start position when this Redis knows no archiver yet: oldest (the oldest entry left) or now
    #[arg(long, env = "START_AT", default_value = "oldest")]
    start_at: String,

    /// Address of /livez, /readyz and /metrics
    #[arg(long, env = "ADMIN_LISTEN", default_value = "127.0.0.1:9814")]
    admin_listen: String,

    /// Time to write what was read after SIGTERM [1s to 15m]
    #[arg(long, env = "SHUTDOWN_TIMEOUT", default_value = "10s")]
    shutdown_timeout: String,
}

/// The archiver's settings, checked.
#[derive(Debug, Clone)]
pub struct ArchiverSettings {
    /// Settings that every process has.
    pub common: ProcessSettings,
    /// The consumer: always `archive`, without a filter. An archive keeps every webhook.
    pub consumer: ConsumerSettings,
    /// The archive.
    pub url: ArchiveUrl,
    /// Keys of the archive.
    pub keys: Arc<ArchiveKeys>,
    /// Bytes at which an object is written.
    pub object_bytes: usize,
    /// Longest time that a webhook waits for an object to be full.
    pub max_delay: Duration,
    /// Time after which objects are deleted; `None`: never.
    pub keep: Option<Duration>,
    /// Start position of a consumer that is registered for the first time.
    pub start_at: StartAt,
    /// Address of the admin endpoint.
    pub admin_listen: SocketAddr,
    /// Time to write what was read.
    pub shutdown_timeout: Duration,
}

impl spillway_process::ServerArgs for ArchiverArgs {
    type Checked = ArchiverSettings;

    fn common(&self) -> &ProcessArgs {
        &self.common
    }

    fn check(&self, checker: &mut Checker) -> ArchiverSettings {
        let s = Duration::from_secs;
        let starts = [("oldest", StartAt::Oldest), ("now", StartAt::Now)];
        let size = checker.size(
            "ARCHIVE_OBJECT_SIZE",
            &self.archive_object_size,
            64 * KIB..=OBJECT_SIZE_MAX,
        );
        let keep = self.archive_keep.as_deref().map(str::trim).filter(|text| !text.is_empty());
        let nowhere = || ArchiveUrl::parse("file:///").expect("BUG: a constant URL is well-formed");
        ArchiverSettings {
            common: self.common.check(checker),
            consumer: ConsumerSettings::of_everything(ConsumerKind::Archiver),
            url: self.archive.url(checker).unwrap_or_else(nowhere),
            keys: Arc::new(self.archive.keys(checker)),
            object_bytes: usize::try_from(size).unwrap_or(usize::MAX),
            max_delay: checker.duration(
                "ARCHIVE_MAX_DELAY",
                &self.archive_max_delay,
                s(1)..=s(3600),
            ),
            keep: keep.map(|keep| checker.duration("ARCHIVE_KEEP", keep, s(DAY)..=s(36_500 * DAY))),
            start_at: checker.choice("START_AT", &self.start_at, &starts),
            admin_listen: checker.address("ADMIN_LISTEN", &self.admin_listen, "127.0.0.1:9814"),
            shutdown_timeout: checker.duration(
                "SHUTDOWN_TIMEOUT",
                &self.shutdown_timeout,
                s(1)..=s(900),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mistakes(arguments: &[&str]) -> String {
        let written = ArchiverArgs::parse_from(["archiver"].iter().chain(arguments));
        let mut checker = Checker::default();
        let settings = spillway_process::ServerArgs::check(&written, &mut checker);
        checker.finish(settings).map_or_else(|mistakes| mistakes.to_string(), |_| String::new())
    }

    #[test]
    fn every_mistake_is_told_at_once() {
        let told = mistakes(&[
            "--archive-url",
            "http://host/",
            "--archive-key-file",
            "/nonexistent",
            "--archive-object-size",
            "1KiB",
            "--archive-max-delay",
            "2h",
            "--archive-keep",
            "5m",
            "--start-at",
            "never",
            "--admin-listen",
            "here",
            "--shutdown-timeout",
            "0",
        ]);
        assert_eq!(told.lines().count(), 8, "{told}");
        assert!(told.contains("s3://bucket/prefix"), "{told}");
    }

    #[test]
    fn only_the_url_is_required() {
        assert_eq!(mistakes(&["--archive-url", "file:///a"]), "");
        assert!(mistakes(&["--archive-url", ""]).contains("ARCHIVE_URL: is required"));
    }
}
