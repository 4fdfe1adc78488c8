//! Description of a replay: what is fed, and how fast. It is part of the record, so that a replay can be resumed.

use clap::Args;
use serde_json::{Value, json};
use spillway_queue::controls::Filter;
use spillway_webhook::freshness::rfc3339;
use spillway_webhook::shopify::is_compliance;
use spillway_webhook::{Position, StreamId};

use super::delivered::DeliveredWebhooks;
use super::feeder::FeedLimits;
use crate::archive::OpenArchive;
use crate::failure::Failure;
use crate::filter::{FILTERS, FilterArguments, moment_ms};
use crate::out::now_ms;

/// Replays that are not settled, of stuck shops too, for each of `--at-once`. With it, 32 shops may be stuck.
const OPEN_SHARE: usize = 8;
/// Part of `--at-once` that one shop may have.
const SHOP_PART: usize = 4;
/// Replays that the consumer has at once, if nobody says it.
const AT_ONCE: u32 = 32;
/// Webhooks that are held in memory, a minute of a shop that takes 70 in a second.
const HELD_MAX: usize = 4096;
/// Bytes of these.
const HELD_BYTES_MAX: usize = 64 << 20;
/// Shops that are left for a later pass. Each takes about 100 bytes here and in Redis.
const LEFT_MAX: usize = 100_000;
const _: () = assert!(SHOP_PART > 1, "one shop never takes all slots while others wait");

/// Topic that ends what an app has with a shop. A second one may end what began since then.
const UNINSTALLED: &[u8] = b"app/uninstalled";

/// Flags of a new replay.
#[derive(Debug, Args)]
pub(super) struct StartArguments {
    /// Stored in the queue at or after this RFC 3339 time, or this long ago, such as 2h
    #[arg(long)]
    from: Option<String>,

    /// Stored in the queue at or before this RFC 3339 time, or this long ago, such as 30m; default: now
    #[arg(long)]
    to: Option<String>,

    #[command(flatten)]
    which: FilterArguments,

    #[command(flatten)]
    breadth: ReplayBreadth,

    /// Cell that received the webhooks, 8 hexadecimal digits, if it is not the one of this Redis
    #[arg(long)]
    cell: Option<String>,

    /// Number per second; default: as fast as they are taken
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,

    /// Replays that the consumer has at once; default: 32. Those of shops that do not take any come in addition
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1024))]
    at_once: Option<u32>,

    /// Only report what would be replayed, whatever --yes says
    #[arg(long)]
    dry_run: bool,

    /// Do it. Without this flag, the command is a dry run: it reports what it would do, and changes nothing
    #[arg(short, long)]
    yes: bool,
}

/// Flags that widen a replay.
#[derive(Debug, Clone, Copy, Default, Args)]
struct ReplayBreadth {
    /// Replay all of them if no filter is given
    #[arg(long)]
    all: bool,

    /// Also replay those of the compliance topics and of app/uninstalled, which are left out unless --topic names them
    #[arg(long)]
    force: bool,
}

/// Flags of a new replay, after their values were checked.
#[derive(Debug, Clone)]
pub(crate) struct AskedReplay {
    from_ms: u64,
    to_ms: u64,
    cell: Option<u32>,
    filter: Filter,
    force: bool,
    pace: ReplayPace,
}

/// Speed of a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReplayPace {
    /// Replays that are not settled.
    pub at_once: u32,
    /// Webhooks per second; `None`: no bound.
    pub rate: Option<u32>,
}

/// Description of a replay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ReplaySpec {
    /// Cell whose objects are read.
    pub cell: u32,
    /// Entries after this one are replayed.
    pub after: StreamId,
    /// Last entry that is replayed.
    pub through: StreamId,
    /// Webhooks that are meant.
    pub filter: Filter,
    /// True if topics are not left out that are not named.
    pub force: bool,
    /// Speed.
    pub pace: ReplayPace,
}

impl StartArguments {
    /// True if no flag is given.
    pub(super) fn is_empty(&self) -> bool {
        let Self { from, to, which, breadth, cell, rate, at_once, dry_run, yes } = self;
        let has_value = from.is_some() || to.is_some() || cell.is_some();
        let has_pace = rate.is_some() || at_once.is_some();
        let ReplayBreadth { all, force } = breadth;
        let has_switch = *dry_run || *yes || *all || *force;
        !has_value && !has_pace && !has_switch && which.clone().filter().is_empty()
    }

    /// True if it is to be done.
    pub(super) fn is_meant(&self) -> bool {
        self.yes && !self.dry_run
    }

    /// Checks the values.
    pub(super) fn checked(self) -> Result<AskedReplay, Failure> {
        self.checked_at(now_ms())
    }

    fn checked_at(self, now_ms: u64) -> Result<AskedReplay, Failure> {
        let missing =
            "give --from: a time such as 2026-01-01T12:00:00Z, or how long ago, such as 2h";
        let from = self.from.ok_or_else(|| Failure::Usage(missing.to_owned()))?;
        let from_ms = moment_ms("--from", &from, now_ms)?;
        let to_ms = self.to.map(|to| moment_ms("--to", &to, now_ms)).transpose()?;
        let to_ms = to_ms.unwrap_or(now_ms);
        if to_ms < from_ms {
            return Err(Failure::Usage("--to is before --from".to_owned()));
        }
        let cell = self.cell.map(|cell| {
            let wrong = || Failure::Usage(format!("--cell {cell:?} is not an id such as a1b2c3d4"));
            cell_id(&cell).ok_or_else(wrong)
        });
        let pace = ReplayPace { at_once: self.at_once.unwrap_or(AT_ONCE), rate: self.rate };
        let cell = cell.transpose()?;
        let filter = self.which.filter();
        let ReplayBreadth { all, force } = self.breadth;
        if filter.is_empty() && !all {
            return Err(Failure::Usage(format!("give a filter ({FILTERS}), or --all")));
        }
        Ok(AskedReplay { from_ms, to_ms, cell, filter, force, pace })
    }
}

/// Range of time of a replay, as given: RFC 3339 or how long ago.
#[derive(Debug, Clone)]
pub(crate) struct AskedRange {
    /// Begin.
    pub from: String,
    /// End.
    pub to: String,
}

impl AskedReplay {
    /// A replay of values that come from elsewhere than the command line. It leaves out what nobody names.
    pub(crate) fn of(
        range: AskedRange,
        filter: Filter,
        rate: Option<u32>,
    ) -> Result<Self, Failure> {
        let now = now_ms();
        let from_ms = moment_ms("since", range.from.trim(), now)?;
        let to_ms = moment_ms("until", range.to.trim(), now)?;
        if to_ms < from_ms {
            return Err(Failure::Usage("until is before since".to_owned()));
        }
        let pace = ReplayPace { at_once: AT_ONCE, rate };
        Ok(Self { from_ms, to_ms, cell: None, filter, force: false, pace })
    }

    /// Describes the replay. Its range ends where the consumer, or the archive, ends: sentences say so.
    pub(super) async fn spec(
        self,
        delivered: &DeliveredWebhooks,
        archive: &OpenArchive,
    ) -> Result<(ReplaySpec, Vec<String>), Failure> {
        let Self { from_ms, to_ms, cell, filter, force, pace } = self;
        let cell = cell.unwrap_or(delivered.cell);
        let mut capped = Vec::new();
        let mut through = StreamId { ms: to_ms, seq: u64::MAX };
        if cell == delivered.cell && delivered.cursor < through {
            through = delivered.cursor;
            if delivered.waiting > 0 {
                capped.push(format!(
                    "ends at {}: what was stored later, {} has not settled yet",
                    rfc3339(through.ms),
                    delivered.consumer
                ));
            }
        }
        let newest = archive.store.newest_before(cell, through.next()).await?;
        let all = archive.store.objects_from(cell, through).await?;
        let last = all.iter().map(|object| object.name.last).max();
        let last = last.or(newest.map(|object| object.name.last)).unwrap_or_default();
        if last < through {
            through = last;
            if last > StreamId::ZERO {
                capped
                    .push(format!("ends at {}: the archive holds nothing later", rfc3339(last.ms)));
            }
        }
        let after = StreamId { ms: from_ms, seq: 0 }.previous();
        Ok((ReplaySpec { cell, after, through, filter, force, pace }, capped))
    }
}

impl ReplaySpec {
    /// Bounds of the feeding.
    pub(super) fn limits(&self) -> FeedLimits {
        let at_once = usize::try_from(self.pace.at_once).unwrap_or(1);
        // A replay of one shop holds up no other shop.
        let part = if self.filter.shop.is_some() { 1 } else { SHOP_PART };
        FeedLimits {
            at_once,
            per_shop: at_once.div_ceil(part),
            open: at_once * OPEN_SHARE,
            held: HELD_MAX,
            held_bytes: HELD_BYTES_MAX,
            left: LEFT_MAX,
        }
    }

    /// True if webhooks of a topic are left out because nobody named it.
    pub(super) fn keeps_back(&self, topic: &[u8]) -> bool {
        let is_named = self.filter.topic.as_ref().is_some_and(|named| named.as_bytes() == topic);
        !self.force && !is_named && (is_compliance(topic) || topic == UNINSTALLED)
    }

    /// Position after which the first webhook is.
    pub(super) fn first(&self) -> Position {
        Position::new(self.after, u32::MAX)
    }

    /// Position of the end of the range.
    pub(super) fn end(&self) -> Position {
        Position::new(self.through, u32::MAX)
    }

    /// The description for the record.
    pub(super) fn to_json(&self) -> String {
        self.json().to_string()
    }

    /// The description as JSON.
    pub(super) fn json(&self) -> Value {
        json!({
            "cell": format!("{:08x}", self.cell),
            "after": self.after.to_string(),
            "through": self.through.to_string(),
            "from": rfc3339(self.after.next().ms),
            "to": rfc3339(self.through.ms),
            "filter": self.filter,
            "force": self.force,
            "at_once": self.pace.at_once,
            "rate": self.pace.rate,
        })
    }

    /// Reads the description of a record. `None` if a newer version wrote it.
    pub(super) fn from_json(text: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(text).ok()?;
        let number =
            |name: &str| value[name].as_u64().and_then(|number| u32::try_from(number).ok());
        Some(Self {
            cell: cell_id(value["cell"].as_str()?)?,
            after: value["after"].as_str()?.parse().ok()?,
            through: value["through"].as_str()?.parse().ok()?,
            filter: serde_json::from_value(value["filter"].clone()).ok()?,
            force: value["force"].as_bool().unwrap_or(false),
            pace: ReplayPace { at_once: number("at_once")?.max(1), rate: number("rate") },
        })
    }
}

fn cell_id(text: &str) -> Option<u32> {
    u32::from_str_radix(text, 16).ok().filter(|_| text.len() == 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(from: Option<&str>, to: Option<&str>, cell: Option<&str>) -> StartArguments {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        StartArguments {
            from: owned(from),
            to: owned(to),
            which: FilterArguments::default(),
            breadth: ReplayBreadth { all: true, force: false },
            cell: owned(cell),
            rate: None,
            at_once: None,
            dry_run: false,
            yes: false,
        }
    }

    #[test]
    fn values_are_checked() {
        let asked = given(Some("10s"), None, Some("a1b2c3d4")).checked_at(20_000).expect("good");
        assert_eq!((asked.from_ms, asked.to_ms, asked.cell), (10_000, 20_000, Some(0xa1b2_c3d4)));
        assert_eq!(asked.pace, ReplayPace { at_once: 32, rate: None });
        for (from, to, cell) in [
            (None, None, None),
            (Some("yesterday"), None, None),
            (Some("5s"), Some("10s"), None),
            (Some("5s"), Some("soon"), None),
            (Some("30M"), None, None),
            (Some("5s"), Some("1M"), None),
            (Some("5s"), None, Some("a1b2")),
        ] {
            assert!(given(from, to, cell).checked_at(20_000).is_err(), "{from:?} {to:?} {cell:?}");
        }
        let narrow =
            StartArguments { breadth: ReplayBreadth::default(), ..given(Some("10s"), None, None) };
        assert!(narrow.checked_at(20_000).is_err(), "neither a filter nor --all");
        let nothing =
            StartArguments { breadth: ReplayBreadth::default(), ..given(None, None, None) };
        assert!(nothing.is_empty() && !given(Some("1s"), None, None).is_empty());
    }

    #[test]
    fn a_description_is_read_back_and_one_shop_has_all_slots() {
        let mut spec = ReplaySpec {
            cell: 0x0000_beef,
            after: StreamId { ms: 5, seq: u64::MAX },
            through: StreamId { ms: 9, seq: 7 },
            filter: Filter { topic: Some("orders/*".to_owned()), ..Filter::default() },
            force: false,
            pace: ReplayPace { at_once: 32, rate: Some(9) },
        };
        assert!(spec.keeps_back(b"customers/redact") && spec.keeps_back(b"app/uninstalled"));
        assert!(!spec.keeps_back(b"orders/create"));
        spec.filter.topic = Some("app/uninstalled".to_owned());
        assert!(spec.keeps_back(b"customers/redact") && !spec.keeps_back(b"app/uninstalled"));
        spec.force = true;
        assert!(!spec.keeps_back(b"customers/redact"));
        assert_eq!(ReplaySpec::from_json(&spec.to_json()), Some(spec.clone()));
        assert_eq!(ReplaySpec::from_json("{}"), None);
        assert_eq!(spec.limits().per_shop, 8);
        spec.filter.shop = Some("a.myshopify.com".to_owned());
        assert_eq!(spec.limits().per_shop, 32);
    }
}
