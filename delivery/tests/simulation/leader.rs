//! A leader: the core, and the state of the worker around it.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::time::Duration;

use spillway_delivery::{
    AttemptEnd, AttemptId, ChunkFound, Core, Dispatch, Effect, Event, ReplayRead,
};
use spillway_webhook::StreamId;
use spillway_webhook::position::Position;

use crate::acts::WAITING_MAX;
use crate::backend::End;
use crate::plan::Plan;
use crate::redis::{Letter, Mark, Redis};
use crate::truth::{Truth, Violation};
use crate::webhook::{Bytes, RAW_BYTES, Resource, Rules, SHOPS, Scheme, Webhook, shop_hash};
use crate::world::{Request, Task, World};

/// Bytes by which the index may exceed its bound, in addition to what is read for empty windows.
const INDEX_SLACK: usize = 6000;
/// Reads for windows that may be under way at once.
const WINDOW_CHUNKS: usize = 32;
/// Bytes of an indexed webhook.
const WEBHOOK_BYTES: usize = 160;

/// An attempt under way.
pub(crate) struct InFlight {
    pub webhook: Webhook,
    pub is_replay: bool,
    pub unit: Resource,
    pub end: End,
    pub began: Duration,
}

pub(crate) struct Leader {
    pub core: Core<Bytes>,
    pub token: u64,
    pub began: Duration,
    pub inbox: Vec<Event<Bytes>>,
    pub attempts: BTreeMap<AttemptId, InFlight>,
    /// Newest pack that the core got.
    pub read_to: StreamId,
    pub is_reading: bool,
    /// Newest replay that the core got.
    pub replays_to: StreamId,
    /// True if the core was told that it got all replays that existed at start.
    pub are_replays_loaded: bool,
    settled: Mark,
    /// Settlement that is under way.
    pub settling: Option<Rc<Letter>>,
    /// Unsettled webhooks of each shop after that settlement, and the newest pack that the core had
    /// before it.
    leaves: ([u64; SHOPS as usize], StreamId),
    number: u64,
    rules: Rules,
    /// Fingerprints that the leader remembers.
    known: HashMap<u128, u64>,
    known_to: usize,
}

impl Leader {
    pub(crate) fn new(
        redis: &Redis,
        plan: &Plan,
        rules: Rules,
        truth: &Truth,
        now: Duration,
    ) -> Self {
        let kept = truth.remembered.iter().filter(|(_, at)| *at >= truth.remembers_from_ms);
        let remembered: Vec<_> = kept.copied().collect();
        Self {
            core: Core::new(plan.config, redis.load(rules.scheme), plan.seen(&remembered)),
            token: redis.token,
            began: now,
            inbox: Vec::new(),
            attempts: BTreeMap::new(),
            read_to: redis.cursor,
            is_reading: false,
            replays_to: StreamId::ZERO,
            are_replays_loaded: false,
            settled: redis.mark,
            settling: None,
            leaves: ([0; SHOPS as usize], StreamId::ZERO),
            number: 0,
            rules,
            known: remembered.iter().copied().collect(),
            known_to: truth.remembered.len(),
        }
    }

    pub(crate) fn wakes_at(&self) -> Duration {
        self.began + self.core.wakes_at()
    }

    pub(crate) fn replay(&mut self, id: StreamId, webhook: &Webhook) -> ReplayRead<Bytes> {
        self.replays_to = self.replays_to.max(id);
        ReplayRead {
            id,
            position: webhook.position,
            classified: webhook.classified(self.rules),
            content: Bytes::of(vec![*webhook]),
        }
    }
}

impl World {
    /// Passes events to the core and carries out its effects. Sometimes a crash occurs in between.
    pub(crate) fn drive(&mut self) -> Result<(), Violation> {
        let inbox = std::mem::take(&mut self.leader.inbox);
        for event in &inbox {
            self.note(event);
        }
        let now = self.leader_now();
        let effects = self.leader.core.on(inbox, now);
        let is_crash = !self.environment.is_calm && self.random.chance(self.plan.crashes / 10);
        let effect_of = self.leader.token;
        let crash_at = is_crash.then(|| self.random.index(effects.len() + 1));
        for (at, effect) in effects.into_iter().enumerate() {
            if crash_at == Some(at) || effect_of != self.leader.token {
                break;
            }
            self.carry_out(effect)?;
        }
        if is_crash && effect_of == self.leader.token {
            self.take_over()?;
        }
        let bytes = self.leader.core.status().index_bytes;
        let counted = self.leader.core.recount();
        if bytes != counted {
            return Err(format!("the index is said to hold {bytes} bytes, not {counted}"));
        }
        let chunk = (self.plan.config.tuning.moved_bytes / RAW_BYTES + 6).min(WAITING_MAX);
        let reads = WINDOW_CHUNKS * chunk * WEBHOOK_BYTES;
        if bytes > self.plan.config.index_bytes + INDEX_SLACK + reads {
            return Err(format!("the index holds {bytes} bytes"));
        }
        if let Some(lost) = self.leader.core.lost_turn() {
            return Err(lost);
        }
        if let Some(wrong) = self.leader.core.uncounted_hiding() {
            return Err(wrong);
        }
        self.check_shares()
    }

    /// Checks that the core counts the unsettled webhooks of each shop that it has read.
    fn check_shares(&self) -> Result<(), Violation> {
        // Webhooks of a lost chunk count until every chunk of their lane was read.
        if self.is_astray || !self.redis.spoiled.is_empty() {
            return Ok(());
        }
        let leader = &self.leader;
        let under_way = leader.settling.as_ref().filter(|letter| letter.mark != self.redis.mark);
        let expected = if under_way.is_some() {
            let (left, read_to) = leader.leaves;
            let new = self.redis.waiting(false, (read_to, leader.read_to), self.exclusion);
            std::array::from_fn(|shop| left[shop] + new[shop])
        } else {
            self.redis.waiting(true, (StreamId::ZERO, leader.read_to), self.exclusion)
        };
        let counted = std::array::from_fn(|shop| {
            let shop = u8::try_from(shop).expect("it is small");
            leader.core.waiting_of(shop_hash(shop))
        });
        let shares = leader.core.shares();
        let is_listed = |shop: usize| {
            let hash = shop_hash(u8::try_from(shop).expect("it is small"));
            let listed = shares.shops.iter().find(|share| share.hash == hash);
            let is_large = expected[shop] >= 16 && expected[shop] * 20 > shares.waiting;
            let is_only = expected.iter().filter(|waiting| **waiting > 0).count() == 1;
            listed.map(|share| share.waiting) == is_large.then_some(expected[shop])
                || (is_only && listed.is_none())
        };
        let sum: u64 = expected.iter().sum();
        let is_right = counted == expected && shares.waiting == sum;
        if !is_right || !(0..expected.len()).all(is_listed) {
            return Err(format!(
                "shares: {expected:?} wait of each shop, counted {counted:?}, {shares:?}"
            ));
        }
        Ok(())
    }

    /// Computes the unsettled webhooks of each shop after a settlement.
    fn foresee(&mut self, letter: &Letter) {
        let mut after = self.redis.clone();
        // A settlement that does not follow the last one is refused, and this leader ends.
        after.apply(letter).ok();
        let read_to = self.leader.read_to;
        let left = after.waiting(true, (StreamId::ZERO, read_to), self.exclusion);
        self.leader.leaves = (left, read_to);
    }

    fn note(&mut self, event: &Event<Bytes>) {
        match event {
            Event::Pack(pack) => {
                self.leader.read_to = pack.entry;
                self.leader.is_reading = false;
            }
            Event::Settled => {
                let letter = self.leader.settling.take();
                let remembered = self.truth.remembered.iter().skip(self.leader.known_to);
                self.leader.known.extend(remembered.copied());
                self.leader.known_to = self.truth.remembered.len();
                self.leader.settled = letter.map_or(self.leader.settled, |letter| letter.mark);
            }
            _ => {}
        }
        if self.log.is_on && !matches!(event, Event::Lease { .. }) {
            let line = describe(event);
            self.log.add(self.now, || line);
        }
    }

    fn carry_out(&mut self, effect: Effect<Bytes>) -> Result<(), Violation> {
        let token = self.leader.token;
        let request = match effect {
            Effect::Send(dispatch) => return self.send(&dispatch),
            Effect::Cancel(id) => {
                self.log.add(self.now, || format!("cancel {}", id.0));
                let attempt = self.leader.attempts.remove(&id);
                if let Some(attempt) = attempt {
                    self.cut(&attempt);
                } else if !self.is_astray {
                    return Err("an attempt that is not there is cancelled".to_owned());
                }
                return Ok(());
            }
            Effect::Settle(settlement) => {
                if self.leader.settling.is_some() {
                    return Err("two settlements are under way".to_owned());
                }
                self.leader.number += 1;
                let letter = Rc::new(Letter {
                    mark: (token, self.leader.number),
                    follows: self.leader.settled,
                    scheme: self.scheme,
                    exclusion: self.exclusion,
                    remembers_from_ms: self.leader.core.remembers_from_ms(),
                    settlement: *settlement,
                });
                self.log.add(self.now, || format!("settle {}", letter.describe()));
                self.leader.settling = Some(letter.clone());
                self.foresee(&letter);
                if !self.environment.is_calm && self.random.chance(100) {
                    let late = self.random.ms(0, 5000);
                    self.later(late, Task::Apply(letter.clone(), false));
                }
                let delay = self.delay();
                self.later(delay, Task::Apply(letter, true));
                return Ok(());
            }
            // If this leader wrote to the lane, too, the next leader corrects the count of lost
            // webhooks.
            Effect::Restart(_) if self.is_astray || !self.redis.spoiled.is_empty() => {
                return self.take_over();
            }
            Effect::Restart(reason) => return Err(format!("restart: {reason}")),
            Effect::Read(key) => Request::Read(key),
            Effect::ReadFront(entries) => Request::Front(entries),
            Effect::ReadChunks { lane, first, count } => Request::Chunks(lane, first, count),
            Effect::ReadRest { lane, entry } => Request::Rest(lane, entry),
        };
        self.log.add(self.now, || format!("ask {request:?}"));
        let delay = self.delay();
        self.later(delay, Task::Execute(token, request));
        Ok(())
    }

    fn send(&mut self, dispatch: &Dispatch<Bytes>) -> Result<(), Violation> {
        if self.is_astray {
            return Ok(());
        }
        let webhook = *self.truth.webhook(dispatch.position)?;
        let (id, older, is_replay) = (dispatch.id, dispatch.older, dispatch.is_replay);
        self.log.add(self.now, || {
            let kind = if is_replay { " as a replay" } else { "" };
            format!("send {} {} for {older} older{kind}", id.0, webhook.name())
        });
        self.tally.sent += 1;
        if self.now >= self.counted.leads_until {
            return Err(format!("{} is sent without a lease", webhook.name()));
        }
        self.truth.check_send(dispatch, self.rules())?;
        self.check_duplicate(dispatch)?;
        let unit = webhook.unit(self.scheme);
        if self.leader.attempts.values().any(|other| other.unit == unit) {
            return Err(format!("{} is sent beside another of its resource", webhook.name()));
        }
        let of_shop = self.leader.attempts.values().filter(|one| one.webhook.shop == webhook.shop);
        let most = self.plan.config.shop_bounds.concurrency_max as usize;
        if of_shop.count() >= most {
            return Err(format!("{} is sent beside {most} others of its shop", webhook.name()));
        }
        if self.leader.attempts.len() >= self.plan.config.bounds.concurrency_max {
            return Err(format!("{} is sent beside too many others", webhook.name()));
        }
        if self.is_paused(&webhook) {
            return Err(format!("{} is paused, and sent", webhook.name()));
        }
        let end = self.backends.answer(&webhook, &mut self.random);
        self.later(end.took, Task::End(self.leader.token, id));
        let attempt = InFlight { webhook, is_replay, unit, end, began: self.now };
        self.leader.attempts.insert(id, attempt);
        Ok(())
    }

    /// Checks that a webhook that was delivered before is not sent as new.
    fn check_duplicate(&self, dispatch: &Dispatch<Bytes>) -> Result<(), Violation> {
        let webhook = self.truth.webhook(dispatch.position)?;
        let ended = self.leader.known.get(&webhook.fingerprint);
        let is_known = ended.is_some_and(|at| self.truth.is_within(*at, webhook));
        if is_known && !dispatch.is_replay {
            return Err(format!("{} is a duplicate, and sent", webhook.name()));
        }
        Ok(())
    }

    fn is_paused(&self, webhook: &Webhook) -> bool {
        let controls = &self.environment.controls;
        controls.is_all_paused
            || self.is_shop_paused(webhook.shop)
            || controls.filters.contains(&webhook.resource())
    }

    pub(crate) fn is_shop_paused(&self, shop: u8) -> bool {
        self.environment.controls.shops.contains(&shop_hash(shop))
    }

    /// Ends an attempt without an answer.
    fn cut(&mut self, attempt: &InFlight) {
        if self.random.chance(500) {
            self.arrived(attempt);
        }
    }

    /// Notes that the backend accepted a webhook, unless the stored data is older.
    fn arrived(&mut self, attempt: &InFlight) {
        if attempt.end.arrives {
            self.shown.arrived(&attempt.webhook, attempt.is_replay);
        }
        if attempt.end.arrives && !self.is_astray {
            self.truth.arrive(attempt.webhook.position, attempt.is_replay, self.scheme);
        }
    }

    pub(crate) fn end_attempt(&mut self, id: AttemptId) {
        let Some(attempt) = self.leader.attempts.remove(&id) else { return };
        self.arrived(&attempt);
        let End { verdict, signal, is_unconnected, .. } = attempt.end;
        let took = self.now - attempt.began;
        let fetching = Duration::ZERO;
        let end = AttemptEnd { id, verdict, signal, is_unconnected, took, fetching, evidence: () };
        self.leader.inbox.push(Event::Ended(end));
    }

    /// Replaces the leader by another one.
    pub(crate) fn take_over(&mut self) -> Result<(), Violation> {
        let attempts = std::mem::take(&mut self.leader.attempts);
        attempts.values().for_each(|attempt| self.cut(attempt));
        if let Some(letter) = self.leader.settling.take()
            && !self.is_astray
            && self.random.chance(500)
        {
            self.apply(&letter, false)?;
        }
        if self.plan.changes_scheme && self.random.chance(300) {
            self.scheme = match self.scheme {
                Scheme::Resource => Scheme::Shop,
                Scheme::Shop => Scheme::Resource,
            };
            self.truth.forget_arrivals();
        }
        if self.random.chance(self.plan.filter_changes) {
            self.exclusion = self.plan.exclusion(&mut self.random);
            self.truth.forget_arrivals();
        }
        self.spoil();
        let Rules { scheme, exclusion, .. } = self.rules();
        self.log.add(self.now, || format!("takeover, order by {scheme:?}, {exclusion:?}"));
        self.lead();
        self.liveness.excuse_all(self.now + Duration::from_secs(1));
        Ok(())
    }
}

fn describe(event: &Event<Bytes>) -> String {
    let names = |webhooks: &[Webhook]| -> String {
        webhooks.iter().map(|webhook| webhook.name() + " ").collect()
    };
    match event {
        Event::Pack(pack) => format!("pack {}", names(&pack.content.0)),
        Event::Replay(replay) => format!("replay {:?} {}", replay.id, names(&replay.content.0)),
        Event::Ended(end) => format!("ended {} {:?}", end.id.0, end.verdict),
        Event::Settled => "settled".to_owned(),
        Event::FrontRead(packs) => {
            format!("front {:?}", packs.iter().map(|pack| pack.entry).collect::<Vec<_>>())
        }
        Event::ChunksRead { lane, chunks } => {
            let chunks: Vec<_> = chunks
                .iter()
                .map(|chunk| {
                    let ChunkFound::Read(one) = chunk else { return format!("{chunk:?}") };
                    format!("{}: {} {:?}", one.number, names(&one.content.0), one.bits)
                })
                .collect();
            format!("chunks of {lane:x}: {chunks:?}")
        }
        Event::RestRead { lane, entry, pack } => {
            format!("rest of {lane:x} in {entry}: {}", pack.is_some())
        }
        Event::Read(key, content) => format!("read {key:?}: {}", content.is_some()),
        Event::Controls(controls) => format!("{controls:?}"),
        other => format!("{other:?}"),
    }
}

impl Letter {
    fn describe(&self) -> String {
        let settlement = &self.settlement;
        let records: Vec<(Position, _)> =
            settlement.records.iter().map(|record| (record.position, record.outcome)).collect();
        let lanes = &settlement.lanes;
        format!(
            "{:?} cursor {:?} {records:?} dropped {} replays {:?} chunks {:?} gone {:?} bits {:?} \
             rows {:?} gone {:?} leads {:x?} gone {:x?} barriers {:?} gone {:?}",
            self.mark,
            settlement.main.cursor,
            settlement.controls.dropped,
            settlement.replays.settled,
            lanes.chunks.written,
            lanes.chunks.deleted,
            lanes.chunk_bits,
            lanes.rows.written,
            lanes.rows.deleted,
            lanes.leads.written,
            lanes.leads.deleted,
            lanes.barriers.written,
            lanes.barriers.deleted
        )
    }
}
