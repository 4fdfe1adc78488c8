//! The receiver's settings, as written and checked.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use spillway_queue::health::DurabilityPolicy;
use spillway_service::common::CommonChecked;
use spillway_service::listen::Endpoint;
use spillway_service::{Checker, Common};
use spillway_webhook::freshness::Window;
use spillway_webhook::shopify::topic_list;
use zeroize::Zeroizing;

const MIB: u64 = 1 << 20;
/// The largest header block. Shopify's are about 1 KB; proxies add some.
pub const HEADER_BYTES_MAX: usize = 64 << 10;
/// Beside its head and body, a webhook holds a header map, a ticket in its batch, a waker, and its
/// connection, which has a task and buffers: measured, with thousands that wait.
pub const OVERHEAD_BYTES: usize = 4096;
/// What a webhook may hold beside its body.
const HEAD_ROOM_BYTES: usize = OVERHEAD_BYTES + HEADER_BYTES_MAX;
/// What a pack may hold beside its largest body.
const SPILL_ROOM_BYTES: u64 = 2 * MIB;
/// Bodies past this would make packs that no drain can decode.
const BODY_MAX: u64 = 128 * MIB;

/// Takes in Shopify webhooks (POST to any path), checks their signature and time, and answers 200
/// once Redis has stored them. Every setting is a flag and an environment variable.
#[derive(Parser)]
#[command(version, max_term_width = 100)]
pub struct Written {
    #[command(flatten)]
    common: Common,

    /// Where to receive: 127.0.0.1:8080 or unix:/path; the sockets passed by systemd win
    #[arg(long, env = "LISTEN", default_value = "127.0.0.1:8080")]
    listen: String,

    /// Mode of the unix socket that LISTEN names, such as 0660: who may write may connect. Not set: as
    /// the umask leaves it [octal, 0 to 0777]
    #[arg(long, env = "LISTEN_MODE")]
    listen_mode: Option<String>,

    /// Group of that socket, which the process must be a member of: a name of /etc/group, or a number.
    /// Not set: its own
    #[arg(long, env = "LISTEN_GROUP")]
    listen_group: Option<String>,

    /// Address of /livez, /readyz and /metrics
    #[arg(long, env = "ADMIN_LISTEN", default_value = "127.0.0.1:9811")]
    admin_listen: String,

    /// The app's client secret; several, comma separated, while it is rotated: any of them
    /// verifies. Prefer the file: a flag shows in the process list
    #[arg(long, env = "SHOPIFY_CLIENT_SECRET", hide_env_values = true)]
    shopify_client_secret: Option<String>,

    /// File with the client secret, one per line; read again on SIGHUP
    #[arg(long, env = "SHOPIFY_CLIENT_SECRET_FILE")]
    shopify_client_secret_file: Option<PathBuf>,

    /// How old a webhook's triggered-at may be [1s to 365d]
    #[arg(long, env = "MAX_EVENT_AGE", default_value = "72h")]
    max_event_age: String,

    /// How far ahead of this machine's clock triggered-at may be [0 to 30d]
    #[arg(long, env = "MAX_CLOCK_SKEW", default_value = "1h")]
    max_clock_skew: String,

    /// Refuse webhooks without triggered-at: true or false
    #[arg(long, env = "REQUIRE_TIMESTAMP", default_value = "true")]
    require_timestamp: String,

    /// What a body may begin as: json, xml, both (comma separated), or any
    #[arg(long, env = "BODY_KINDS", default_value = "json,xml")]
    body_kinds: String,

    /// The largest body [1KiB to 128MiB]
    #[arg(long, env = "MAX_BODY", default_value = "16MiB")]
    max_body: String,

    /// Bytes received and not yet stored, before more is refused; at least MAX_BODY + 68KiB [1MiB
    /// to 64GiB]
    #[arg(long, env = "MAX_IN_FLIGHT", default_value = "256MiB")]
    max_in_flight: String,

    /// Connections at once; fewer where the limit of open files, less 64 and 8 for each core, is lower
    /// [1 to 1000000]
    #[arg(long, env = "MAX_CONNECTIONS", default_value = "10000")]
    max_connections: String,

    /// Time for a request's headers, from its first byte, and for the first byte of a new connection
    /// [100ms to 60s]
    #[arg(long, env = "HEADER_TIMEOUT", default_value = "5s")]
    header_timeout: String,

    /// Time for a request's body, from the end of its headers [100ms to 60s]
    #[arg(long, env = "BODY_TIMEOUT", default_value = "3s")]
    body_timeout: String,

    /// How long a connection may be idle after an answer [1s to 1h]
    #[arg(long, env = "IDLE_TIMEOUT", default_value = "75s")]
    idle_timeout: String,

    /// Time from a request's first byte to its answer; Shopify gives up at 5 s [100ms to 60s]
    #[arg(long, env = "ACK_TIMEOUT", default_value = "3s")]
    ack_timeout: String,

    /// Refuse to receive unless Redis syncs to disk before it answers: true or false; with false, a crash of
    /// Redis can lose webhooks that were answered 200
    #[arg(long, env = "REQUIRE_DURABLE", default_value = "true")]
    require_durable: String,

    /// How Redis' durability is known: measured (by its settings), or vouched: you know that the service keeps
    /// what it has answered, though it hides its settings
    #[arg(long, env = "REDIS_DURABILITY", default_value = "measured")]
    redis_durability: String,

    /// Directory to write webhooks to while Redis takes none, rather than refuse them; they are fed
    /// to it in order afterwards. On a disk that keeps what it synced; for one receiver alone, which
    /// is then its cell's only one. Not set: refuse them
    #[arg(long, env = "SPILL_DIR")]
    spill_dir: Option<PathBuf>,

    /// What may lie in SPILL_DIR, before webhooks are refused; at least MAX_BODY + 2MiB [1MiB to
    /// 16TiB]
    #[arg(long, env = "SPILL_MAX", default_value = "10GiB")]
    spill_max: String,

    /// What one shop's webhooks that wait may take of Redis' maxmemory; past it, that shop's are
    /// answered 503, except compliance topics, app/uninstalled and PRIORITY_TOPICS; 100: no bound
    /// [percent, 1 to 100]
    #[arg(long, env = "SHOP_MAX_QUEUED", default_value = "50")]
    shop_max_queued: String,

    /// Topics that are stored past SHOP_MAX_QUEUED, comma separated; orders/* means all of a kind.
    /// The downstreamer's setting of the same name
    #[arg(long, env = "PRIORITY_TOPICS", default_value = "orders/*")]
    priority_topics: String,

    /// Time to finish what is under way after SIGTERM [1s to 5m]
    #[arg(long, env = "SHUTDOWN_TIMEOUT", default_value = "10s")]
    shutdown_timeout: String,
}

/// The receiver's settings, checked.
#[derive(Debug)]
pub struct Settings {
    /// Settings that every process has.
    pub common: CommonChecked,
    /// Where to receive.
    pub listen: Endpoint,
    /// Where the admin endpoint is.
    pub admin_listen: SocketAddr,
    /// The client secrets, and where they can be read again.
    pub secrets: SecretSettings,
    /// The accepted window of triggered-at.
    pub window: Window,
    /// What a body may begin as.
    pub body_kinds: BodyKinds,
    /// The largest body, in bytes.
    pub body_bytes_max: usize,
    /// Bytes received and not yet stored.
    pub in_flight_bytes_max: usize,
    /// Connections at once.
    pub connections_max: usize,
    /// Time for a request's headers.
    pub header_timeout: Duration,
    /// Time for a request's body.
    pub body_timeout: Duration,
    /// How long a connection may be idle.
    pub idle_timeout: Duration,
    /// Time from a request's first byte to its answer.
    pub ack_timeout: Duration,
    /// What is asked of Redis' durability.
    pub durability: DurabilityPolicy,
    /// Where packs go while Redis takes none.
    pub spill: Option<SpillSettings>,
    /// Bound of each shop.
    pub shop_limit: ShopLimit,
    /// Time to finish what is under way.
    pub shutdown_timeout: Duration,
}

/// Client secrets as they were set.
#[derive(Debug, Clone)]
pub struct SecretSettings {
    /// One at least. Any of them verifies.
    pub secrets: Vec<Zeroizing<String>>,
    /// File that they were read from, if any.
    pub file: Option<PathBuf>,
}

/// Overflow log: where, and how much.
#[derive(Debug, Clone)]
pub struct SpillSettings {
    /// The directory.
    pub directory: PathBuf,
    /// Bytes on disk.
    pub bytes_max: u64,
}

/// Bound of a shop, and what is stored past it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShopLimit {
    /// Part of Redis' `maxmemory` in percent; 100: no bound.
    pub queued_percent: u64,
    /// Topics, or kinds such as `orders/*`, that are stored past it.
    pub priority_topics: Vec<String>,
}

/// What a body may begin as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BodyKinds {
    /// `{` or `[`.
    pub json: bool,
    /// `<`.
    pub xml: bool,
    /// Anything at all, nothing included.
    pub any: bool,
}

impl spillway_service::Written for Written {
    type Checked = Settings;

    fn common(&self) -> &Common {
        &self.common
    }

    fn check(&self, checker: &mut Checker) -> Settings {
        let (ms, s) = (Duration::from_millis, Duration::from_secs);
        let (hour, day) = (s(3600), s(24 * 3600));
        let settings = Settings {
            common: self.common.check(checker),
            listen: self.endpoint(checker),
            admin_listen: checker.address("ADMIN_LISTEN", &self.admin_listen),
            secrets: self.secrets(checker),
            window: Window {
                age_max: checker.duration("MAX_EVENT_AGE", &self.max_event_age, s(1)..=365 * day),
                skew_max: checker.duration(
                    "MAX_CLOCK_SKEW",
                    &self.max_clock_skew,
                    Duration::ZERO..=30 * day,
                ),
                required: checker.flag("REQUIRE_TIMESTAMP", &self.require_timestamp),
            },
            body_kinds: body_kinds(checker, &self.body_kinds),
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
            idle_timeout: checker.duration("IDLE_TIMEOUT", &self.idle_timeout, s(1)..=hour),
            ack_timeout: checker.duration("ACK_TIMEOUT", &self.ack_timeout, ms(100)..=s(60)),
            durability: self.durability(checker),
            spill: self.spill(checker),
            shop_limit: self.shop_limit(checker),
            shutdown_timeout: checker.duration(
                "SHUTDOWN_TIMEOUT",
                &self.shutdown_timeout,
                s(1)..=s(300),
            ),
        };
        if settings.in_flight_bytes_max < settings.body_bytes_max + HEAD_ROOM_BYTES {
            checker.mistake(
                "MAX_IN_FLIGHT",
                format_args!(
                    "must be at least MAX_BODY + {}KiB, which a webhook's headers may take: \
                     else the largest body never fits",
                    HEAD_ROOM_BYTES >> 10
                ),
            );
        }
        let largest = settings.body_bytes_max as u64 + SPILL_ROOM_BYTES;
        if settings.spill.as_ref().is_some_and(|spill| spill.bytes_max < largest) {
            checker.mistake(
                "SPILL_MAX",
                "must be at least MAX_BODY + 2MiB: else the largest body never fits",
            );
        }
        settings
    }
}

impl Written {
    fn endpoint(&self, checker: &mut Checker) -> Endpoint {
        let (mode, group) = (self.listen_mode.as_deref(), self.listen_group.as_deref());
        Endpoint::check(checker, &self.listen, mode, group)
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

    fn secrets(&self, checker: &mut Checker) -> SecretSettings {
        let secrets = checker.secrets(
            "SHOPIFY_CLIENT_SECRET",
            self.shopify_client_secret.as_deref(),
            self.shopify_client_secret_file.as_deref(),
            true,
        );
        SecretSettings { secrets, file: self.shopify_client_secret_file.clone() }
    }
}

fn body_kinds(checker: &mut Checker, text: &str) -> BodyKinds {
    let mut kinds = BodyKinds { json: false, xml: false, any: false };
    for word in text.split(',').map(str::trim) {
        match word {
            "json" => kinds.json = true,
            "xml" => kinds.xml = true,
            "any" => kinds.any = true,
            _ => checker.mistake("BODY_KINDS", format_args!("{word:?} is none of json, xml, any")),
        }
    }
    kinds
}

fn bytes(size: u64) -> usize {
    usize::try_from(size).expect("BUG: the range ends below 2^63")
}
