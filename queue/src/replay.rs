//! Replays of archived webhooks: the record of each, and the webhooks that are fed to the consumer's stream of replays.
//!
//! One script appends webhooks and advances the record, and only for the process that owns the record. So a process or
//! a Redis that is killed loses and repeats nothing. Each step has a number: one whose reply was lost is sent again,
//! and is not applied twice.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rand::RngExt;
use redis::{Script, cmd};
use spillway_webhook::{Position, StreamId, WebhookId};

use crate::connect::{Connection, Redis};
use crate::error::QueueError;
use crate::read::stream_id;

/// Records of one consumer. Those of replays that ended make room, the oldest first. A list of them is read with a
/// command for each.
pub const RECORDS_MAX: usize = 100;
/// Time for which the record of a replay that ended is kept.
pub const KEPT: Duration = Duration::from_secs(7 * 24 * 3600);
/// Entries of the stream of replays that one script looks at: about 100 KB of packs.
const LOOKED_AT: usize = 64;

/// State of a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplayState {
    /// Fed, or can be resumed.
    Running,
    /// Everything was fed.
    Done,
    /// An operator ended it.
    Cancelled,
}

/// Record of a replay, as it is in Redis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplayRecord {
    /// Id of the replay, 8 hexadecimal digits.
    pub id: String,
    /// Description of what is replayed, as the operator's command wrote it.
    pub spec: String,
    /// State of the replay.
    pub state: ReplayState,
    /// Number of the last step that was applied.
    pub step: u64,
    /// Position after which webhooks are to be fed.
    pub after: Position,
    /// Webhooks that were fed.
    pub fed: u64,
    /// Webhooks that were passed over.
    pub skipped: u64,
    /// Shops whose webhooks are fed later.
    pub shops_left: u64,
    /// Time of the start, in milliseconds since the Unix epoch, by the clock of the operator's machine.
    pub started_ms: u64,
    /// Time of the last change, by the same clock.
    pub changed_ms: u64,
}

/// A webhook to feed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FedWebhook {
    /// A pack of one.
    pub pack: Vec<u8>,
    /// Id of the webhook.
    pub webhook: WebhookId,
    /// Shop domain.
    pub shop: String,
}

/// One step of a replay.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReplayStep {
    /// Position after which webhooks are to be fed from now on.
    pub after: Position,
    /// Webhooks to feed, in their order.
    pub webhooks: Vec<FedWebhook>,
    /// Shops whose webhooks are fed later: position of the next one, or `None` if nothing is left.
    pub left: Vec<(String, Option<Position>)>,
    /// Webhooks that were passed over.
    pub skipped: u64,
}

/// Reason for which Redis refuses a step, or the start of a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReplayRefusal {
    /// There is no such record.
    #[error("there is no record of this replay: see `spillway replay list`")]
    Gone,
    /// Another process feeds the replay.
    #[error("another process has taken over this replay")]
    Taken,
    /// The replay ended.
    #[error("this replay is done")]
    Done,
    /// An operator cancelled the replay.
    #[error("this replay was cancelled")]
    Cancelled,
    /// Redis came back with older data.
    #[error("redis came back with older data than it had confirmed: resume the replay")]
    Older,
    /// The redactions are others than those that the process knows. Nothing was fed.
    #[error("somebody is to be forgotten since the webhooks were read: resume the replay")]
    Redacted,
    /// The consumer has no cursor.
    #[error("the consumer is not registered any more: see `spillway consumers`")]
    Unregistered,
    /// There are too many replays that have not ended.
    #[error("this consumer has 100 replays that have not ended: cancel those that are not needed")]
    Many,
}

/// Hand on the record of one replay, of the process that feeds it.
pub struct ReplayFeed {
    redis: Redis,
    consumer: String,
    id: String,
    token: String,
    step: u64,
    /// Redactions that are known, as a text that changes with them.
    fence: String,
    script: Script,
}

impl ReplayState {
    /// Name of the state.
    pub fn label(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Done => "done",
            Self::Cancelled => "cancelled",
        }
    }

    fn of_label(label: &str) -> Result<Self, QueueError> {
        let all = [Self::Running, Self::Done, Self::Cancelled];
        let found = all.into_iter().find(|state| state.label() == label);
        found.ok_or_else(|| QueueError::Unexpected(format!("state of a replay {label:?}")))
    }
}

impl ReplayRefusal {
    fn of_word(word: &str) -> Result<Self, QueueError> {
        Ok(match word {
            "gone" => Self::Gone,
            "taken" => Self::Taken,
            "done" => Self::Done,
            "cancelled" => Self::Cancelled,
            "older" => Self::Older,
            "redacted" => Self::Redacted,
            "unregistered" => Self::Unregistered,
            "many" => Self::Many,
            other => return Err(QueueError::Unexpected(format!("answer to a replay {other:?}"))),
        })
    }
}

impl ReplayFeed {
    /// Prepares a new replay of `consumer`, with a random id.
    pub fn new(redis: &Redis, consumer: &str) -> Self {
        Self::of(redis, consumer, format!("{:08x}", rand::rng().random::<u32>()))
    }

    /// Prepares to feed the replay with this id.
    pub fn of(redis: &Redis, consumer: &str, id: String) -> Self {
        Self {
            redis: redis.clone(),
            consumer: consumer.to_owned(),
            id,
            token: format!("{:016x}", rand::rng().random::<u64>()),
            step: 0,
            fence: String::new(),
            script: Script::new(include_str!("lua/replay_feed.lua")),
        }
    }

    /// Id of the replay.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Writes the record of a new replay.
    ///
    /// # Errors
    /// [`QueueError`] from Redis.
    pub async fn start(
        &mut self,
        connection: &mut Connection,
        spec: &str,
        after: Position,
    ) -> Result<Result<(), ReplayRefusal>, QueueError> {
        let keys = self.redis.keys.of(&self.consumer);
        let script = record_script();
        let mut call = script.key(keys.replay_record(&self.id));
        call.key(keys.replay_left(&self.id)).key(keys.replay_records());
        call.key(self.redis.keys.stream());
        call.arg("start").arg(&self.id).arg(&self.token).arg(now_ms());
        call.arg(spec).arg(after.to_string()).arg(RECORDS_MAX).arg(keys.replay_record(""));
        call.arg(keys.replay_left("")).arg(&self.consumer);
        let state: Vec<String> = call.invoke_async(connection).await?;
        match state.first().map(String::as_str) {
            // The second time, its first reply was lost: the id is random.
            Some("new" | "running") => Ok(Ok(())),
            word => ReplayRefusal::of_word(word.unwrap_or_default()).map(Err),
        }
    }

    /// Takes the record over from any other process. Returns it, and the shops that are left, each with the position
    /// of its next webhook.
    ///
    /// # Errors
    /// [`QueueError`] from Redis.
    pub async fn take(
        &mut self,
        connection: &mut Connection,
    ) -> Result<Result<(ReplayRecord, HashMap<String, Position>), ReplayRefusal>, QueueError> {
        self.read_as(connection, "take").await
    }

    /// Reads the record again, as [`Self::take`] does, unless another process has taken it over.
    ///
    /// # Errors
    /// [`QueueError`] from Redis.
    pub async fn read_again(
        &mut self,
        connection: &mut Connection,
    ) -> Result<Result<(ReplayRecord, HashMap<String, Position>), ReplayRefusal>, QueueError> {
        self.read_as(connection, "again").await
    }

    async fn read_as(
        &mut self,
        connection: &mut Connection,
        verb: &str,
    ) -> Result<Result<(ReplayRecord, HashMap<String, Position>), ReplayRefusal>, QueueError> {
        match self.change(connection, verb).await?.as_deref() {
            Some("running") => {}
            None => return Ok(Err(ReplayRefusal::Gone)),
            Some(word) => return ReplayRefusal::of_word(word).map(Err),
        }
        // Read after it was taken: no other process changes it from now on.
        let Some(record) = record(&self.redis, connection, &self.consumer, &self.id).await? else {
            return Ok(Err(ReplayRefusal::Gone));
        };
        let key = self.redis.keys.of(&self.consumer).replay_left(&self.id);
        let left: HashMap<String, String> = cmd("HGETALL").arg(key).query_async(connection).await?;
        let left = left.into_iter().map(|(shop, text)| Ok((shop, position(&text)?)));
        let left = left.collect::<Result<_, QueueError>>()?;
        self.step = record.step;
        Ok(Ok((record, left)))
    }

    /// Notes which redactions are known from now on. What they mean must be read after that: a step is refused once
    /// there are others.
    ///
    /// # Errors
    /// [`QueueError`] from Redis.
    pub async fn note_redactions(&mut self, connection: &mut Connection) -> Result<(), QueueError> {
        let keys = &self.redis.keys;
        let script = Script::new(include_str!("lua/replay_fence.lua"));
        let mut call = script.key(keys.redactions());
        call.key(keys.redactions_noted()).key(keys.forgotten());
        self.fence = call.invoke_async(connection).await?;
        Ok(())
    }

    /// Ends the replay: everything was fed.
    ///
    /// # Errors
    /// [`QueueError`] from Redis.
    pub async fn finish(
        &mut self,
        connection: &mut Connection,
    ) -> Result<Result<(), ReplayRefusal>, QueueError> {
        match self.change(connection, "done").await?.as_deref() {
            // The second time, its first reply was lost.
            Some("running" | "done") => Ok(Ok(())),
            None => Ok(Err(ReplayRefusal::Gone)),
            Some(word) => ReplayRefusal::of_word(word).map(Err),
        }
    }

    /// Applies a step. Returns the ids under which its webhooks are fed. After an error, the same step must be
    /// applied again until there is an answer: it may be applied already.
    ///
    /// # Errors
    /// [`QueueError`] from Redis; [`QueueError::Full`] if there is no room.
    pub async fn apply(
        &mut self,
        connection: &mut Connection,
        step: &ReplayStep,
    ) -> Result<Result<Vec<StreamId>, ReplayRefusal>, QueueError> {
        let keys = self.redis.keys.of(&self.consumer);
        let next = self.step + 1;
        let mut call = self.script.key(keys.replay_record(&self.id));
        call.key(keys.replay_left(&self.id)).key(keys.replays());
        let of_cell = &self.redis.keys;
        call.key(of_cell.stream()).key(of_cell.redactions());
        call.key(of_cell.redactions_noted()).key(of_cell.forgotten());
        call.arg(&self.token).arg(next).arg(&self.id).arg(step.after.to_string());
        call.arg(step.skipped).arg(now_ms());
        call.arg(&self.consumer).arg(&self.fence).arg(step.webhooks.len());
        for FedWebhook { pack, webhook, shop } in &step.webhooks {
            call.arg(pack.as_slice()).arg(webhook.to_string()).arg(shop);
        }
        call.arg(step.left.len());
        for (shop, next) in &step.left {
            call.arg(shop).arg(next.map(|next| next.to_string()).unwrap_or_default());
        }
        let reply: Vec<String> = call.invoke_async(connection).await?;
        match reply.split_first() {
            Some((word, ids)) if word == "fed" => {
                self.step = next;
                ids.iter().map(|id| stream_id(id)).collect::<Result<_, _>>().map(Ok)
            }
            Some((word, _)) => ReplayRefusal::of_word(word).map(Err),
            None => Err(QueueError::Unexpected("no answer to a replay".to_owned())),
        }
    }

    /// Returns those of `ids` that are not settled.
    ///
    /// # Errors
    /// [`QueueError`] from Redis.
    pub async fn unsettled(
        &self,
        connection: &mut Connection,
        ids: &[StreamId],
    ) -> Result<Vec<StreamId>, QueueError> {
        let script = Script::new(include_str!("lua/replay_open.lua"));
        let mut found = Vec::new();
        for part in ids.chunks(LOOKED_AT) {
            let mut call = script.key(self.redis.keys.of(&self.consumer).replays());
            call.arg("known");
            for id in part {
                call.arg(id.to_string());
            }
            let there: Vec<String> = call.invoke_async(connection).await?;
            for id in there {
                found.push(stream_id(&id)?);
            }
        }
        Ok(found)
    }

    /// Number of replays that the consumer has not settled, also of dead letters and of other replays.
    ///
    /// # Errors
    /// [`QueueError`] from Redis.
    pub async fn count(&self, connection: &mut Connection) -> Result<u64, QueueError> {
        let key = self.redis.keys.of(&self.consumer).replays();
        Ok(cmd("XLEN").arg(key).query_async(connection).await?)
    }

    /// Returns all webhooks that were fed and are not settled, with their shops.
    ///
    /// # Errors
    /// [`QueueError`] from Redis.
    pub async fn open(
        &self,
        connection: &mut Connection,
    ) -> Result<Vec<(StreamId, String)>, QueueError> {
        let script = Script::new(include_str!("lua/replay_open.lua"));
        let mut found = Vec::new();
        let mut after = StreamId::ZERO.to_string();
        loop {
            let mut call = script.key(self.redis.keys.of(&self.consumer).replays());
            call.arg("fed").arg(&self.id).arg(&after).arg(LOOKED_AT);
            let page: Vec<String> = call.invoke_async(connection).await?;
            let Some((last, entries)) = page.split_first().filter(|(last, _)| !last.is_empty())
            else {
                return Ok(found);
            };
            for entry in entries.chunks_exact(2) {
                found.push((stream_id(&entry[0])?, entry[1].clone()));
            }
            after.clone_from(last);
        }
    }

    /// State of the record before the change; `None` if there is no record.
    async fn change(
        &self,
        connection: &mut Connection,
        verb: &str,
    ) -> Result<Option<String>, QueueError> {
        change(&self.redis, connection, &self.consumer, &self.id, [verb, &self.token], self.step)
            .await
    }
}

/// Cancels a replay. Returns its state before; `None` if there is no record. What was fed is still delivered.
///
/// # Errors
/// [`QueueError`] from Redis.
pub async fn cancel(
    redis: &Redis,
    connection: &mut Connection,
    consumer: &str,
    id: &str,
) -> Result<Option<ReplayState>, QueueError> {
    let state = change(redis, connection, consumer, id, ["cancel", ""], 0).await?;
    state.map(|state| ReplayState::of_label(&state)).transpose()
}

/// Returns the records of a consumer, the oldest first.
///
/// # Errors
/// [`QueueError`] from Redis.
pub async fn list(
    redis: &Redis,
    connection: &mut Connection,
    consumer: &str,
) -> Result<Vec<ReplayRecord>, QueueError> {
    let key = redis.keys.of(consumer).replay_records();
    let ids: Vec<String> = cmd("HKEYS").arg(key).query_async(connection).await?;
    let mut found = Vec::new();
    for id in ids {
        // A record that ended is removed after a while, and its name with the next start.
        found.extend(record(redis, connection, consumer, &id).await?);
    }
    found.sort_by(|a, b| (a.started_ms, &a.id).cmp(&(b.started_ms, &b.id)));
    Ok(found)
}

fn record_script() -> Script {
    Script::new(include_str!("lua/replay_record.lua"))
}

async fn change(
    redis: &Redis,
    connection: &mut Connection,
    consumer: &str,
    id: &str,
    [verb, token]: [&str; 2],
    step: u64,
) -> Result<Option<String>, QueueError> {
    let keys = redis.keys.of(consumer);
    let script = record_script();
    let mut call = script.key(keys.replay_record(id));
    call.key(keys.replay_left(id)).key(keys.replay_records()).key(redis.keys.stream());
    call.arg(verb).arg(id).arg(token).arg(now_ms()).arg(KEPT.as_secs()).arg(step);
    let state: Vec<String> = call.invoke_async(connection).await?;
    Ok(state.into_iter().next())
}

async fn record(
    redis: &Redis,
    connection: &mut Connection,
    consumer: &str,
    id: &str,
) -> Result<Option<ReplayRecord>, QueueError> {
    let keys = redis.keys.of(consumer);
    let mut pipe = redis::pipe();
    pipe.cmd("HGETALL").arg(keys.replay_record(id));
    pipe.cmd("HLEN").arg(keys.replay_left(id));
    let (fields, shops_left): (HashMap<String, String>, u64) = pipe.query_async(connection).await?;
    if fields.is_empty() {
        return Ok(None);
    }
    let text = |name: &str| fields.get(name).map(String::as_str).unwrap_or_default();
    let number = |name: &str| text(name).parse().unwrap_or(0);
    Ok(Some(ReplayRecord {
        id: id.to_owned(),
        spec: text("spec").to_owned(),
        state: ReplayState::of_label(text("state"))?,
        step: number("step"),
        after: position(text("after"))?,
        fed: number("fed"),
        skipped: number("skipped"),
        shops_left,
        started_ms: number("started"),
        changed_ms: number("changed"),
    }))
}

fn position(text: &str) -> Result<Position, QueueError> {
    text.parse().map_err(|_| QueueError::Unexpected(format!("position {text:?} of a replay")))
}

/// Time of this machine's clock, for an operator's eyes.
fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}
