//! The receiver's settings, as set and as checked.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser;
use spillway_process::listen::ListenEndpoint;
use spillway_process::process_args::ProcessSettings;
use spillway_process::{Checker, ProcessArgs};
use spillway_queue::health::DurabilityPolicy;
use spillway_webhook::freshness::FreshnessWindow;
use spillway_webhook::shopify::{is_barrier, is_compliance, is_topic_pattern, topic_list};

use crate::apps::AppSettings;
use crate::ignored::{IgnoreSettings, read_shops};
use crate::inspect::{AGE_RANGE, BodyKinds, InspectionRules};
use crate::secrets::settings::{SecretArgs, SecretSettings};
use crate::tls::settings::{TlsArgs, TlsSettings};

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

const MIB: u64 = 1 << 20;
/// Largest header block. Shopify's are about 1 KB; proxies add some.
pub const HEADER_BYTES_MAX: usize = 64 << 10;
/// Bytes that a webhook holds in addition to its head and body: a header map, a ticket in its
/// batch, a waker, and its connection with a task and buffers. Measured, with thousands that wait.
pub const OVERHEAD_BYTES: usize = 4096;
/// Bytes that a webhook may hold in addition to its body.
const HEAD_ROOM_BYTES: usize = OVERHEAD_BYTES + HEADER_BYTES_MAX;
/// Bytes that a pack may hold in addition to its largest body.
const SPILL_ROOM_BYTES: u64 = 2 * MIB;
/// Larger bodies would make packs that no consumer can decode.
const BODY_MAX: u64 = 128 * MIB;
const _: () = assert!(
    (HEADER_BYTES_MAX as u64) < MIB && MIB <= BODY_MAX,
    "MAX_IN_FLIGHT has room for a request"
);

/// Receives Shopify webhooks (POST to any path), verifies signature and time, and answers 200 once
/// Redis has stored them. Every setting is a flag and an environment variable.
#[derive(Parser)]
#[command(version = spillway_process::version(), max_term_width = 100)]
pub struct ReceiverArgs {
    #[command(flatten)]
    common: ProcessArgs,

    /// Address or socket to receive on: 127.0.0.1:8080 or unix:/path; sockets passed by systemd
    /// take precedence
    #[arg(long, env = "LISTEN", default_value = "127.0.0.1:8080")]
    listen: String,

    /// Mode of the unix socket that LISTEN names, such as 0660: processes with write permission may
    /// connect. Not set: as the umask leaves it [octal, 0 to 0777]
    #[arg(long, env = "LISTEN_MODE")]
    listen_mode: Option<String>,

    /// Group of that socket: a name of /etc/group, or a number; the process must be a member of it.
    /// Not set: the group of the process
    #[arg(long, env = "LISTEN_GROUP")]
    listen_group: Option<String>,

    #[command(flatten)]
    tls: TlsArgs,

    /// Address of /livez, /readyz and /metrics
    #[arg(long, env = "ADMIN_LISTEN", default_value = "127.0.0.1:9811")]
    admin_listen: String,

    #[command(flatten)]
    secrets: SecretArgs,

    /// TOML file with several apps, each with a name, paths or hosts, and secrets of its own; read again
    /// on SIGHUP, and within 10 s of a change. What is sent to none of the apps is verified with the
    /// receiver's own secrets (SHOPIFY_CLIENT_SECRET, SHOPIFY_CLIENT_SECRET_FILE, SHOP_SECRETS_DIR or
    /// SHOP_SECRETS_URL), or answered 404 if none of these is set
    #[arg(long, env = "APPS_FILE")]
    apps_file: Option<PathBuf>,

    /// Maximum age of a webhook's triggered-at [1s to 365d]
    #[arg(long, env = "MAX_EVENT_AGE", default_value = "72h")]
    max_event_age: String,

    /// Maximum time by which triggered-at may be ahead of this machine's clock [0 to 30d]
    #[arg(long, env = "MAX_CLOCK_SKEW", default_value = "1h")]
    max_clock_skew: String,

    /// Refuse webhooks without triggered-at: true or false
    #[arg(long, env = "REQUIRE_TIMESTAMP", default_value = "false")]
    require_timestamp: String,

    /// Allowed kinds of bodies: json, xml, both (comma separated), or any
    #[arg(long, env = "BODY_KINDS", default_value = "json,xml")]
    body_kinds: String,

    /// Maximum size of a body [1KiB to 128MiB]
    #[arg(long, env = "MAX_BODY", default_value = "16MiB")]
    max_body: String,

    /// Maximum bytes received and not yet stored; more is refused; at least MAX_BODY + 68KiB [1MiB
    /// to 64GiB]
    #[arg(long, env = "MAX_IN_FLIGHT", default_value = "256MiB")]
    max_in_flight: String,

    /// Maximum connections at once; fewer where the limit of open files, less 64 and 8 for each
    /// core, is lower [1 to 1000000]
    #[arg(long, env = "MAX_CONNECTIONS", default_value = "10000")]
    max_connections: String,

    /// Time for a request's headers, from its first byte, and for the first byte of a new connection
    /// [100ms to 60s]
    #[arg(long, env = "HEADER_TIMEOUT", default_value = "5s")]
    header_timeout: String,

    /// Time for a request's body, from the end of its headers [100ms to 60s]
    #[arg(long, env = "BODY_TIMEOUT", default_value = "3s")]
    body_timeout: String,

    /// Time for which a connection may be idle after an answer [1s to 1h]
    #[arg(long, env = "IDLE_TIMEOUT", default_value = "75s")]
    idle_timeout: String,

    /// Time from a request's first byte to its answer, once its body is there; Shopify gives up at 5 s
    /// [100ms to 60s]
    #[arg(long, env = "ACK_TIMEOUT", default_value = "3s")]
    ack_timeout: String,

    /// Refuse to receive unless Redis syncs to disk before it answers: true or false. With false, a
    /// crash of Redis can lose webhooks that were answered 200
    #[arg(long, env = "REQUIRE_DURABLE", default_value = "true")]
    require_durable: String,

    /// Source of Redis' durability: measured (read from its settings), or vouched (you know that
    /// the service keeps what it has answered, though it hides its settings)
    #[arg(long, env = "REDIS_DURABILITY", default_value = "measured")]
    redis_durability: String,

    /// Directory that webhooks are written to while Redis takes none; they are restored to Redis in
    /// order afterwards. Use a disk that keeps what it synced. The directory is for one receiver
    /// alone, which is then the only one of its cell. It is created; the one above it must exist.
    /// Not set: webhooks are refused
    #[arg(long, env = "SPILL_DIR")]
    spill_dir: Option<PathBuf>,

    /// Maximum size of SPILL_DIR; webhooks are refused beyond it; at least MAX_BODY + 2MiB [1MiB to
    /// 16TiB]
    #[arg(long, env = "SPILL_MAX", default_value = "10GiB")]
    spill_max: String,

    /// Maximum part of Redis' maxmemory for the waiting webhooks of one shop. Beyond it, those of
    /// that shop are answered 503, except compliance topics and app/uninstalled, and PRIORITY_TOPICS
    /// below their own limit, in the middle between this one and 100; 100: no limit [percent, 1 to
    /// 100]
    #[arg(long, env = "SHOP_MAX_QUEUED", default_value = "50")]
    shop_max_queued: String,

    /// Topics that are stored beyond SHOP_MAX_QUEUED, up to the middle between it and 100 %, comma
    /// separated; orders/* means all of a kind. The downstreamer has a setting of the same name
    #[arg(long, env = "PRIORITY_TOPICS", default_value = "orders/*,Order/*")]
    priority_topics: String,

    /// Topics that are answered 200 and not stored, comma separated; carts/* means all of a kind.
    /// Compliance topics and app/uninstalled are always stored
    #[arg(long, env = "IGNORE_TOPICS", default_value = "")]
    ignore_topics: String,

    /// File with domains of shops whose webhooks are answered 200 and not stored, one per line; read
    /// again on SIGHUP, and within 10 s of a change. Compliance topics and app/uninstalled are always
    /// stored
    #[arg(long, env = "IGNORE_SHOPS_FILE")]
    ignore_shops_file: Option<PathBuf>,

    /// Least silence of a shop and topic that `spillway gaps` lists, where it is also more than twice the longest one of
    /// this week and the last [100ms to 30d]
    #[arg(long, env = "SILENT_AFTER", default_value = "1h")]
    silent_after: String,

    /// Time to finish what is under way after SIGTERM [1s to 5m]
    #[arg(long, env = "SHUTDOWN_TIMEOUT", default_value = "10s")]
    shutdown_timeout: String,
}

/// The receiver's settings, checked.
#[derive(Debug)]
pub struct ReceiverSettings {
    /// Settings that every process has.
    pub common: ProcessSettings,
    /// Address or socket that receives webhooks.
    pub listen: ListenEndpoint,
    /// Address and certificates of HTTPS.
    pub tls: Option<TlsSettings>,
    /// Address of the admin endpoint.
    pub admin_listen: SocketAddr,
    /// The client secrets, and the file from which they can be read again.
    pub secrets: SecretSettings,
    /// Apps with paths and secrets of their own.
    pub apps: Option<AppSettings>,
    /// Rules for webhooks that are for none of these.
    pub rules: InspectionRules,
    /// Largest body, in bytes.
    pub body_bytes_max: usize,
    /// Most bytes that are received and not yet stored.
    pub in_flight_bytes_max: usize,
    /// Most connections at once.
    pub connections_max: usize,
    /// Time for a request's headers.
    pub header_timeout: Duration,
    /// Time for a request's body.
    pub body_timeout: Duration,
    /// Time for which a connection may be idle.
    pub idle_timeout: Duration,
    /// Time from a request's first byte to its answer.
    pub ack_timeout: Duration,
    /// Requirements for Redis' durability.
    pub durability: DurabilityPolicy,
    /// Overflow log, for the time in which Redis takes no packs.
    pub spill: Option<SpillSettings>,
    /// Limit of each shop.
    pub shop_limit: ShopLimit,
    /// Webhooks that are not stored.
    pub ignore: IgnoreSettings,
    /// Least silence of a shop and topic that counts.
    pub silent_after: Duration,
    /// Time to finish what is under way.
    pub shutdown_timeout: Duration,
}

/// Directory and size of the overflow log.
#[derive(Debug, Clone)]
pub struct SpillSettings {
    /// Directory of the log.
    pub directory: PathBuf,
    /// Most bytes on disk.
    pub bytes_max: u64,
}

/// Limit of a shop, and the topics that are exempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShopLimit {
    /// Percentage of Redis' `maxmemory`. 100: no limit.
    pub queued_percent: u64,
    /// Topics, or kinds such as `orders/*`, that are stored past the limit.
    pub priority_topics: Vec<String>,
}

impl spillway_process::ServerArgs for ReceiverArgs {
    type Checked = ReceiverSettings;

    fn common(&self) -> &ProcessArgs {
        &self.common
    }

    fn check(&self, checker: &mut Checker) -> ReceiverSettings {
        let ms = Duration::from_millis;
        let s = Duration::from_secs;
        let rules = self.rules(checker);
        let settings = ReceiverSettings {
            common: self.common.check(checker),
            listen: self.endpoint(checker),
            tls: self.tls.check(checker),
            admin_listen: checker.address("ADMIN_LISTEN", &self.admin_listen, "127.0.0.1:9811"),
            secrets: self.secrets.check(checker, self.apps_file.is_none()),
            apps: self.apps(rules, checker),
            rules,
            body_bytes_max: bytes(checker.size("MAX_BODY", &self.max_body, 1024..=BODY_MAX)),
            in_flight_bytes_max: bytes(checker.size(
                "MAX_IN_FLIGHT",
                &self.max_in_flight,
                MIB..=64 * 1024 * MIB,
            )),
            connections_max: checker.number(
                "MAX_CONNECTIONS",
                &self.max_connections,
                1..=1_000_000,
            ),
            header_timeout: checker.duration(
                "HEADER_TIMEOUT",
                &self.header_timeout,
                ms(100)..=s(60),
            ),
            body_timeout: checker.duration("BODY_TIMEOUT", &self.body_timeout, ms(100)..=s(60)),
            idle_timeout: checker.duration("IDLE_TIMEOUT", &self.idle_timeout, s(1)..=HOUR),
            ack_timeout: checker.duration("ACK_TIMEOUT", &self.ack_timeout, ms(100)..=s(60)),
            durability: self.durability(checker),
            spill: self.spill(checker),
            shop_limit: self.shop_limit(checker),
            ignore: self.ignore(checker),
            silent_after: checker.duration("SILENT_AFTER", &self.silent_after, ms(100)..=30 * DAY),
            shutdown_timeout: checker.duration(
                "SHUTDOWN_TIMEOUT",
                &self.shutdown_timeout,
                s(1)..=s(300),
            ),
        };
        settings.check_room(checker);
        settings
    }
}

impl ReceiverSettings {
    /// Checks that the largest body fits wherever it has to.
    fn check_room(&self, checker: &mut Checker) {
        if self.in_flight_bytes_max < self.body_bytes_max + HEAD_ROOM_BYTES {
            checker.mistake(
                "MAX_IN_FLIGHT",
                format_args!(
                    "must be at least MAX_BODY + {}KiB, which a webhook's headers may take: \
                     else the largest body never fits",
                    HEAD_ROOM_BYTES >> 10
                ),
            );
        }
        let largest = self.body_bytes_max as u64 + SPILL_ROOM_BYTES;
        if self.spill.as_ref().is_some_and(|spill| spill.bytes_max < largest) {
            checker.mistake(
                "SPILL_MAX",
                "must be at least MAX_BODY + 2MiB: else the largest body never fits",
            );
        }
    }
}

impl ReceiverArgs {
    fn endpoint(&self, checker: &mut Checker) -> ListenEndpoint {
        let mode = self.listen_mode.as_deref();
        let group = self.listen_group.as_deref();
        ListenEndpoint::check(checker, &self.listen, mode, group)
    }

    fn rules(&self, checker: &mut Checker) -> InspectionRules {
        let window = FreshnessWindow {
            age_max: checker.duration("MAX_EVENT_AGE", &self.max_event_age, AGE_RANGE),
            skew_max: checker.duration(
                "MAX_CLOCK_SKEW",
                &self.max_clock_skew,
                Duration::ZERO..=30 * DAY,
            ),
            required: checker.flag("REQUIRE_TIMESTAMP", &self.require_timestamp),
        };
        InspectionRules {
            window,
            body_kinds: BodyKinds::check(checker, "BODY_KINDS", &self.body_kinds),
        }
    }

    fn apps(&self, rules: InspectionRules, checker: &mut Checker) -> Option<AppSettings> {
        let file = self.apps_file.clone().filter(|path| !path.as_os_str().is_empty())?;
        let settings = AppSettings { file, rules };
        if let Err(problem) = settings.read() {
            checker.mistake("APPS_FILE", problem);
        }
        Some(settings)
    }

    fn durability(&self, checker: &mut Checker) -> DurabilityPolicy {
        let is_vouched = match self.redis_durability.trim() {
            "measured" => false,
            "vouched" => true,
            _ => {
                checker.mistake("REDIS_DURABILITY", "must be measured or vouched");
                false
            }
        };
        let is_required = checker.flag("REQUIRE_DURABLE", &self.require_durable);
        DurabilityPolicy { is_required, is_vouched }
    }

    fn spill(&self, checker: &mut Checker) -> Option<SpillSettings> {
        let bytes_max = checker.size("SPILL_MAX", &self.spill_max, MIB..=16 * 1024 * 1024 * MIB);
        let directory = self.spill_dir.clone().filter(|path| !path.as_os_str().is_empty())?;
        if !directory.is_absolute() {
            checker.mistake("SPILL_DIR", "must be an absolute path");
        } else if let Some(parent) = absent_parent(&directory) {
            let problem = "does not exist; create it, or correct SPILL_DIR";
            checker.mistake("SPILL_DIR", format_args!("{} {problem}", parent.display()));
        }
        if cfg!(not(feature = "spill")) {
            checker.mistake("SPILL_DIR", "this receiver was built without the feature `spill`");
        }
        Some(SpillSettings { directory, bytes_max })
    }

    fn shop_limit(&self, checker: &mut Checker) -> ShopLimit {
        let percent = self.shop_max_queued.trim().trim_end_matches('%');
        ShopLimit {
            queued_percent: checker.number("SHOP_MAX_QUEUED", percent, 1..=100),
            priority_topics: topic_list(&self.priority_topics),
        }
    }

    fn ignore(&self, checker: &mut Checker) -> IgnoreSettings {
        const KEY: &str = "IGNORE_TOPICS";
        let topics = topic_list(&self.ignore_topics);
        for topic in &topics {
            let name = topic.as_bytes();
            if is_compliance(name) || is_barrier(name) {
                checker.mistake(KEY, format_args!("{topic} must not be ignored: remove it"));
            } else if !is_topic_pattern(topic) {
                let problem = "is not a topic, such as carts/update, Page/update or carts/*";
                checker.mistake(KEY, format_args!("{topic} {problem}"));
            }
        }
        let file = self.ignore_shops_file.clone().filter(|path| !path.as_os_str().is_empty());
        let shops = file.as_deref().map(read_shops).transpose().unwrap_or_else(|problem| {
            checker.mistake("IGNORE_SHOPS_FILE", problem);
            None
        });
        IgnoreSettings { topics, shops: shops.unwrap_or_default(), shops_file: file }
    }
}

/// Directory that systemd creates for the package's receiver, at its first start (`StateDirectory=`).
const STATE_DIRECTORY: &str = "/var/lib/spillway-receiver";

/// Directory above `directory`, if it certainly does not exist. Only the last component is created: a
/// mistyped path would be on another disk.
fn absent_parent(directory: &Path) -> Option<&Path> {
    let parent = directory.parent().filter(|parent| *parent != Path::new(STATE_DIRECTORY))?;
    let is_absent = matches!(parent.try_exists(), Ok(false)) && !directory.is_dir();
    is_absent.then_some(parent)
}

fn bytes(size: u64) -> usize {
    usize::try_from(size).expect("BUG: the range ends below 2^63")
}
