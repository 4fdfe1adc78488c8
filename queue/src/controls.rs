//! An operator's controls to one consumer: pause, resume, drop. They stay in Redis until they are
//! carried out, so they outlive a change of the leader. Only the leader carries them out.
//!
//! A drop names its webhooks one by one, by entry and index. The process that requests it has read
//! them. The leader settles those that still wait, through the same settlements as everything else,
//! so none is counted twice. Nothing in this module settles anything.

use std::collections::{HashMap, HashSet};

use redis::{Script, cmd};
use serde::{Deserialize, Serialize};
use spillway_webhook::{StreamId, WebhookId};

use crate::connect::{Connection, Redis};
use crate::error::QueueError;
use crate::read::stream_id;

/// Maximum number of entries that one script names. It bounds the time for which the script blocks
/// Redis.
const NAMED_MAX: usize = 10_000;

/// Names that one read asks for. It bounds the time for which the read blocks Redis to some milliseconds.
const NAMES_READ: usize = 2_000;

/// Place in the webhooks to drop; the first one by default.
#[derive(Debug, Clone, Copy, Default)]
pub struct ScanCursor(u64);

/// Selection of webhooks. A field that is `None` is not compared. An empty filter selects all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Filter {
    /// Shop domain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shop: Option<String>,
    /// Topic, or a pattern for all topics of a kind, such as `orders/*`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
    /// App, where a receiver serves several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app: Option<String>,
    /// Resource, such as `product/12`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// Shopify's webhook id, or the Spillway-Id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook_id: Option<String>,
}

/// Properties of a webhook that a filter compares. Finding the resource needs the body, so it is a
/// closure.
pub struct WebhookFacts<'a, R: FnOnce() -> String> {
    /// Id of the webhook.
    pub id: WebhookId,
    /// Shop domain.
    pub shop: &'a str,
    /// Topic.
    pub topic: &'a str,
    /// App, where a receiver serves several; else empty.
    pub app: &'a str,
    /// Shopify's webhook id.
    pub webhook_id: &'a str,
    /// Returns the resource, such as `product/12`.
    pub resource: R,
}

/// Pause of some or all webhooks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Pause {
    /// Webhooks that are paused: all, if the filter is empty.
    #[serde(flatten)]
    pub filter: Filter,
    /// Start of the pause, in milliseconds since the Unix epoch.
    pub since_ms: u64,
}

/// Webhooks that are named to be dropped.
#[derive(Debug, Clone, Default)]
pub struct Dropping {
    /// Entry of the main stream → one bit for each webhook.
    pub main: HashMap<StreamId, Vec<u8>>,
    /// Ids in the stream of replays.
    pub replays: HashSet<StreamId>,
}

/// All controls to a consumer that are in force.
#[derive(Debug, Clone, Default)]
pub struct OperatorControls {
    /// Number that grows with each order.
    pub version: u64,
    /// Pauses in force.
    pub pauses: Vec<Pause>,
    /// Webhooks to drop.
    pub dropping: Dropping,
}

/// Progress of a consumer with its controls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CarriedOut {
    /// Controls up to this version are carried out, as far as the consumer has read the queue.
    pub version: u64,
    /// Total number of webhooks dropped by order.
    pub dropped: u64,
    /// Version of the newest controls.
    pub ordered: u64,
}

impl Filter {
    /// True if the filter selects everything.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the shop, if the filter compares the shop and nothing else.
    pub fn only_shop(&self) -> Option<&str> {
        let shop = self.shop.as_deref()?;
        let is_only = *self == Self { shop: self.shop.clone(), ..Self::default() };
        is_only.then_some(shop)
    }

    /// True if the filter selects this webhook.
    pub fn matches<R: FnOnce() -> String>(&self, asked: WebhookFacts<'_, R>) -> bool {
        let is = |wanted: &Option<String>, have: &str| {
            wanted.as_deref().is_none_or(|wanted| wanted == have)
        };
        is(&self.shop, asked.shop)
            && is(&self.app, asked.app)
            && self.topic.as_deref().is_none_or(|topic| is_topic(topic, asked.topic))
            && self
                .webhook_id
                .as_deref()
                .is_none_or(|id| id == asked.webhook_id || id.parse() == Ok(asked.id))
            && self.resource.as_deref().is_none_or(|wanted| wanted == (asked.resource)())
    }
}

impl std::fmt::Display for Filter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { shop, topic, app, resource, webhook_id } = self;
        let named = [
            ("shop", shop),
            ("topic", topic),
            ("app", app),
            ("resource", resource),
            ("webhook-id", webhook_id),
        ];
        let given = named.into_iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
        let parts: Vec<_> = given.map(|(name, value)| format!("{name} {value}")).collect();
        f.write_str(
            if parts.is_empty() { "everything".to_owned() } else { parts.join(", ") }.as_str(),
        )
    }
}

fn is_topic(pattern: &str, topic: &str) -> bool {
    spillway_webhook::shopify::is_topic_match(pattern, topic.as_bytes())
}

impl Dropping {
    /// True if nothing is to be dropped.
    pub fn is_empty(&self) -> bool {
        self.main.is_empty() && self.replays.is_empty()
    }

    /// Number of names: entries of the main stream, each for some of its webhooks, and replays.
    pub fn names(&self) -> usize {
        self.main.len() + self.replays.len()
    }

    /// Number of orders by which these webhooks are dropped.
    pub fn orders(&self) -> usize {
        self.names().div_ceil(NAMED_MAX)
    }

    /// Names one webhook of the main stream.
    pub fn name(&mut self, entry: StreamId, index: u32) {
        let bits = self.main.entry(entry).or_default();
        let byte = index as usize / 8;
        bits.resize(bits.len().max(byte + 1), 0);
        bits[byte] |= 1 << (index % 8);
    }

    /// True if this webhook of the main stream is named.
    pub fn is_named(&self, entry: StreamId, index: u32) -> bool {
        self.main.get(&entry).is_some_and(|bits| is_set(bits, index))
    }
}

/// True if the bit of the webhook at `index` is set.
pub fn is_set(bits: &[u8], index: u32) -> bool {
    bits.get(index as usize / 8).is_some_and(|byte| byte & (1 << (index % 8)) != 0)
}

/// Reads the controls to `consumer` that are in force.
///
/// # Errors
/// [`QueueError`] from Redis.
pub async fn read(
    redis: &Redis,
    connection: &mut Connection,
    consumer: &str,
) -> Result<OperatorControls, QueueError> {
    let mut controls = read_orders(redis, connection, consumer).await?;
    let mut at = Some(ScanCursor::default());
    while let Some(cursor) = at {
        at = read_names(redis, connection, consumer, cursor, &mut controls.dropping).await?;
    }
    Ok(controls)
}

/// Reads the controls to `consumer` that are in force, without the webhooks to drop. Those are read
/// afterwards ([`read_names`]): they must not be older than the version.
///
/// # Errors
/// [`QueueError`] from Redis.
pub async fn read_orders(
    redis: &Redis,
    connection: &mut Connection,
    consumer: &str,
) -> Result<OperatorControls, QueueError> {
    let fields: HashMap<String, String> =
        cmd("HGETALL").arg(redis.keys.of(consumer).controls()).query_async(connection).await?;
    let version = number(fields.get("version"));
    Ok(OperatorControls { version, pauses: pauses(&fields), dropping: Dropping::default() })
}

/// Reads some of the webhooks to drop into `dropping`: there may be millions. Returns the place of the
/// next part, or `None` after the last one.
///
/// # Errors
/// [`QueueError`] from Redis.
pub async fn read_names(
    redis: &Redis,
    connection: &mut Connection,
    consumer: &str,
    cursor: ScanCursor,
    dropping: &mut Dropping,
) -> Result<Option<ScanCursor>, QueueError> {
    let mut command = cmd("HSCAN");
    command.arg(redis.keys.of(consumer).dropping()).arg(cursor.0).arg("COUNT").arg(NAMES_READ);
    let (next, named): (u64, HashMap<String, Vec<u8>>) = command.query_async(connection).await?;
    for (name, bits) in named {
        match name.strip_prefix(REPLAY) {
            Some(id) => {
                dropping.replays.insert(stream_id(id)?);
            }
            None => {
                dropping.main.insert(stream_id(&name)?, bits);
            }
        }
    }
    Ok((next != 0).then_some(ScanCursor(next)))
}

/// Reads the progress of `consumer` with its controls.
///
/// # Errors
/// [`QueueError`] from Redis.
pub async fn carried_out(
    redis: &Redis,
    connection: &mut Connection,
    consumer: &str,
) -> Result<CarriedOut, QueueError> {
    let mut command = cmd("HMGET");
    command.arg(redis.keys.of(consumer).controls()).arg("applied").arg("dropped").arg("version");
    let (version, dropped, ordered): (Option<u64>, Option<u64>, Option<u64>) =
        command.query_async(connection).await?;
    Ok(CarriedOut {
        version: version.unwrap_or(0),
        dropped: dropped.unwrap_or(0),
        ordered: ordered.unwrap_or(0),
    })
}

/// Returns true if webhooks are named to be dropped. Those that are settled keep their names for a while.
///
/// # Errors
/// [`QueueError`] from Redis.
pub async fn names_exist(
    redis: &Redis,
    connection: &mut Connection,
    consumer: &str,
) -> Result<bool, QueueError> {
    let names: u64 =
        cmd("HLEN").arg(redis.keys.of(consumer).dropping()).query_async(connection).await?;
    Ok(names > 0)
}

/// Pauses the webhooks that `filter` selects, since `since_ms`. Returns true if that is new, and
/// the version of the order.
///
/// # Errors
/// [`QueueError`] from Redis; [`QueueError::Unregistered`] if there is no such consumer.
pub async fn pause(
    redis: &Redis,
    connection: &mut Connection,
    consumer: &str,
    filter: &Filter,
    since_ms: u64,
) -> Result<(bool, u64), QueueError> {
    let arguments = [field_of(filter), since_ms.to_string()];
    let (changed, version) = order(redis, connection, consumer, "pause", &[], &arguments).await?;
    Ok((changed > 0, version))
}

/// Ends pauses. Returns the number of pauses that ended, and the version of the order.
///
/// # Errors
/// [`QueueError`] from Redis; [`QueueError::Unregistered`] if there is no such consumer.
pub async fn resume(
    redis: &Redis,
    connection: &mut Connection,
    consumer: &str,
    filters: &[Filter],
) -> Result<(u64, u64), QueueError> {
    let arguments: Vec<_> = filters.iter().map(field_of).collect();
    order(redis, connection, consumer, "resume", &[], &arguments).await
}

/// Orders to drop these webhooks, the oldest first and replays last. `history` holds their records for the history.
/// Calls `ordered` with the number of webhooks whose drop is ordered so far, which after an error is
/// what the order holds at least. Returns the version of the order.
///
/// # Errors
/// [`QueueError`] from Redis; [`QueueError::Unregistered`] if there is no such consumer.
pub async fn drop(
    redis: &Redis,
    connection: &mut Connection,
    consumer: &str,
    dropping: &Dropping,
    history: &[u8],
    mut ordered: impl FnMut(u64),
) -> Result<u64, QueueError> {
    let mut entries: Vec<_> = dropping.main.iter().collect();
    entries.sort_unstable_by_key(|(id, _)| **id);
    let mut replays: Vec<_> = dropping.replays.iter().collect();
    replays.sort_unstable();
    let main = entries.into_iter().map(|(id, bits)| (id.to_string(), bits.clone()));
    let replays = replays.into_iter().map(|id| (format!("{REPLAY}{id}"), vec![1]));
    let named: Vec<(String, Vec<u8>)> = main.chain(replays).collect();
    let (mut version, mut webhooks) = (0, 0);
    for (number, part) in named.chunks(NAMED_MAX).enumerate() {
        let history = if number == 0 { history } else { &[] };
        (_, version) = order(redis, connection, consumer, "drop", history, part).await?;
        let bits = part.iter().flat_map(|(_, bits)| bits);
        webhooks += bits.map(|byte| u64::from(byte.count_ones())).sum::<u64>();
        ordered(webhooks);
    }
    Ok(version)
}

/// Prefix of a replay's id among the webhooks to drop.
const REPLAY: &str = "replay:";
/// Prefix of a pause among the fields of the controls.
const PAUSE: &str = "pause:";

async fn order(
    redis: &Redis,
    connection: &mut Connection,
    consumer: &str,
    verb: &str,
    history: &[u8],
    arguments: impl redis::ToRedisArgs,
) -> Result<(u64, u64), QueueError> {
    let keys = redis.keys.of(consumer);
    let script = Script::new(include_str!("lua/control.lua"));
    let mut call = script.key(redis.keys.stream());
    call.key(keys.controls()).key(keys.dropping()).key(keys.history());
    call.arg(verb).arg(consumer).arg(history).arg(arguments);
    Ok(call.invoke_async(connection).await?)
}

/// Name of a pause's field. Equal filters give the same name, since the JSON has a fixed field
/// order.
fn field_of(filter: &Filter) -> String {
    let json = serde_json::to_string(filter).expect("BUG: a filter is JSON");
    format!("{PAUSE}{json}")
}

/// Returns the pauses among the fields of an order hash, oldest first.
pub(crate) fn pauses(fields: &HashMap<String, String>) -> Vec<Pause> {
    let pause = |(name, since): (&String, &String)| {
        let filter = serde_json::from_str(name.strip_prefix(PAUSE)?).ok()?;
        Some(Pause { filter, since_ms: since.parse().unwrap_or(0) })
    };
    let mut pauses: Vec<_> = fields.iter().filter_map(pause).collect();
    pauses.sort_by_key(|pause| (pause.since_ms, pause.filter.to_string()));
    pauses
}

fn number(text: Option<&String>) -> u64 {
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(resource: &str) -> WebhookFacts<'_, impl FnOnce() -> String> {
        let id = "a1b2c3d4-0000000005000-0000000000-00000".parse().unwrap();
        let resource = || resource.to_owned();
        let (shop, topic, app) = ("a.example", "orders/create", "one");
        WebhookFacts { id, shop, topic, app, webhook_id: "d-1", resource }
    }

    fn check(expected: bool, set: impl FnOnce(&mut Filter)) {
        let mut filter = Filter::default();
        set(&mut filter);
        assert_eq!(filter.matches(asked("order/12")), expected, "{filter}");
    }

    #[test]
    fn each_part_matches_and_does_not() {
        let some = |text: &str| Some(text.to_owned());
        check(true, |_| {});
        check(true, |filter| filter.shop = some("a.example"));
        check(false, |filter| filter.shop = some("a"));
        check(true, |filter| filter.topic = some("orders/*"));
        check(false, |filter| filter.topic = some("orders"));
        check(true, |filter| filter.app = some("one"));
        check(false, |filter| filter.app = some("two"));
        check(true, |filter| filter.resource = some("order/12"));
        check(false, |filter| filter.resource = some("order/1"));
        check(true, |filter| filter.webhook_id = some("d-1"));
        check(true, |f| f.webhook_id = some("a1b2c3d4-0000000005000-0000000000-00000"));
        check(false, |filter| filter.webhook_id = some("d-2"));
        check(false, |f| (f.shop, f.topic) = (some("a.example"), some("carts/*")));
    }

    #[test]
    fn a_pause_is_read_back() {
        let filter = Filter { shop: Some("a\"b".to_owned()), ..Filter::default() };
        assert_eq!(filter.only_shop(), Some("a\"b"));
        let fields = HashMap::from([
            (field_of(&filter), "5".to_owned()),
            ("version".to_owned(), "9".to_owned()),
            (field_of(&Filter::default()), "4".to_owned()),
        ]);
        let pauses = pauses(&fields);
        assert_eq!(pauses.len(), 2);
        assert!(pauses[0].filter.is_empty() && pauses[0].since_ms == 4);
        assert_eq!(pauses[1], Pause { filter, since_ms: 5 });
    }

    #[test]
    fn names_are_bits() {
        let mut dropping = Dropping::default();
        let entry = StreamId { ms: 1, seq: 2 };
        dropping.name(entry, 9);
        dropping.name(entry, 0);
        assert_eq!(dropping.main[&entry], [1, 2]);
        let named = |index| dropping.is_named(entry, index);
        assert!(named(0) && named(9) && !named(1) && !named(99));
        assert!(!dropping.is_named(StreamId::ZERO, 0));
        dropping.replays.insert(entry);
        assert_eq!((dropping.names(), dropping.orders()), (2, 1));
        dropping.replays.extend((0..10_000).map(|seq| StreamId { ms: 2, seq }));
        assert_eq!((dropping.names(), dropping.orders()), (10_002, 2));
    }
}
