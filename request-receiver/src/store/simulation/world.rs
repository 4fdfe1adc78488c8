//! Simulated world: its steps, and the invariants that hold after each.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::process::{Late, Process, Restorer, Shard, name};
use super::redis::{Command, Redis, Reply, SendId};
use super::{Plan, Random};
use crate::store::mode::{Destination, StoreEvent, StoreMode};

const SENDERS: usize = 5;
const SHARDS: usize = 3;
/// Records that are restored at once.
const CHUNK: usize = 4;

/// Sender that sends a webhook again until it is answered 200, and then the next one.
#[derive(Debug, Default)]
struct Sender {
    number: u32,
    waits_for: Option<SendId>,
}

pub(super) struct World {
    random: Random,
    pub plan: Plan,
    has_log: bool,
    is_logged: bool,
    redis: Redis,
    /// Records that survive a power cut.
    log: Vec<SendId>,
    process: Process,
    senders: Vec<Sender>,
    /// Sender and number of each try.
    sends: Vec<(usize, u32)>,
    /// Process that appended a try directly.
    appended_by: HashMap<SendId, u64>,
    accepted: HashSet<SendId>,
    pub transitions: HashMap<(&'static str, &'static str), u64>,
    mode: StoreMode,
}

impl World {
    pub(super) fn new(seed: u64, is_logged: bool) -> Self {
        let mut random = Random(seed);
        let plan = Plan::of(&mut random);
        let has_log = random.chance(750);
        let process = Process::new(1, SHARDS, has_log);
        Self {
            mode: process.machine.mode(),
            random,
            plan,
            has_log,
            is_logged,
            redis: Redis::default(),
            log: Vec::new(),
            process,
            senders: (0..SENDERS).map(|_| Sender::default()).collect(),
            sends: Vec::new(),
            appended_by: HashMap::new(),
            accepted: HashSet::new(),
            transitions: HashMap::new(),
        }
    }

    fn note(&self, line: impl FnOnce() -> String) {
        if self.is_logged {
            println!("{:?} {}", self.process.machine.mode(), line());
        }
    }

    fn on(&mut self, event: StoreEvent) {
        self.process.machine.on(event);
        self.note(|| format!("{event:?}"));
        self.count_mode();
    }

    fn count_mode(&mut self) {
        let mode = self.process.machine.mode();
        let before = std::mem::replace(&mut self.mode, mode);
        if before != mode {
            *self.transitions.entry((name(before), name(mode))).or_default() += 1;
        }
    }

    pub(super) fn step(&mut self) {
        self.fault();
        match self.random.below(9) {
            0 => self.send(),
            1 => {
                let ran = self.redis.run_one(&mut self.random);
                self.note(|| format!("run {ran:?}"));
            }
            2 => self.shard_step(),
            3 => self.late_step(),
            4 | 5 if self.has_log => self.restorer_step(),
            6 => {
                if !self.redis.is_hung {
                    let is_short =
                        self.has_log && !self.plan.is_healed() && self.random.chance(100);
                    let is_usable = !self.redis.is_full;
                    let usable = StoreEvent::Queue { is_usable };
                    self.on(if is_short && is_usable { StoreEvent::QueueShort } else { usable });
                } else if self.random.chance(300) {
                    self.on(StoreEvent::Queue { is_usable: false });
                }
            }
            7 => self.confirm(),
            _ if self.has_log => self.hold_step(),
            _ => {}
        }
        self.stop();
    }

    /// Continues a shutdown after SIGTERM. The process ends when nothing is under way, or when its
    /// time is over.
    fn stop(&mut self) {
        if self.process.is_stopping && (self.process.is_idle() || self.random.chance(20)) {
            self.crash();
        }
    }

    fn fault(&mut self) {
        let plan = self.plan;
        if plan.is_healed() {
            (self.redis.is_hung, self.redis.is_full, self.redis.is_claimed) = (false, false, false);
            return;
        }
        let wakes = 2 * plan.hangs + 20;
        if self.random.chance(if self.redis.is_hung { wakes } else { plan.hangs }) {
            self.redis.is_hung = !self.redis.is_hung;
        }
        let empties = 2 * plan.fills + 20;
        if self.random.chance(if self.redis.is_full { empties } else { plan.fills }) {
            self.redis.is_full = !self.redis.is_full;
        }
        let releases = 4 * plan.claims + 20;
        if self.random.chance(if self.redis.is_claimed { releases } else { plan.claims }) {
            self.redis.is_claimed = !self.redis.is_claimed;
            if self.redis.is_claimed {
                self.redis.was_claimed = true;
                // The other receiver's append may take effect at any time, until somebody closes
                // its connections.
                self.redis.call(Command::Foreign);
            }
        }
        if self.random.chance(plan.expires) {
            self.expire();
        }
        if self.random.chance(plan.crashes) {
            self.crash();
        }
        self.process.is_stopping |= self.random.chance(plan.stops);
    }

    /// Answers a sender that nothing is known of its webhook.
    fn expire(&mut self) {
        let at = self.random.below(SENDERS);
        if let Some(id) = self.senders[at].waits_for {
            self.answer(id, false);
        }
    }

    fn answer(&mut self, id: SendId, is_ok: bool) {
        let (sender, number) = self.sends[id];
        let sender = &mut self.senders[sender];
        if sender.waits_for != Some(id) {
            return;
        }
        sender.waits_for = None;
        if is_ok {
            assert_eq!(sender.number, number);
            sender.number += 1;
            let is_stored = self.redis.stream.contains(&id) || self.log.contains(&id);
            assert!(is_stored, "{id} is answered 200 and stored nowhere");
            self.accepted.insert(id);
        }
        self.note(|| format!("answer {id} {is_ok}"));
    }

    fn is_waited_for(&self, id: SendId) -> bool {
        self.senders[self.sends[id].0].waits_for == Some(id)
    }

    fn send(&mut self) {
        let at = self.random.below(SENDERS);
        let is_over = self.process.is_stopping || self.senders[at].waits_for.is_some();
        if is_over || !self.random.chance(self.plan.sends) {
            return;
        }
        let shard = self.random.below(SHARDS);
        if self.process.shards[shard] != Shard::Idle {
            return;
        }
        let id = self.sends.len();
        self.sends.push((at, self.senders[at].number));
        self.senders[at].waits_for = Some(id);
        let outlived = self.process.outlived(|id| self.is_waited_for(id));
        self.pass_after(shard, id, outlived);
    }

    /// Lets a batch pass the gate.
    fn pass(&mut self, shard: usize, id: SendId) {
        let is_direct = self.process.machine.mode() == StoreMode::Direct;
        if is_direct && !self.process.lost.is_empty() {
            if self.redis.is_hung {
                return self.process.shards[shard] = Shard::Held(id);
            }
            let lost = std::mem::take(&mut self.process.lost);
            lost.into_iter().for_each(|call| self.redis.close(call));
        }
        let destination = self.process.machine.route();
        self.note(|| format!("shard {shard} passes {id}: {destination:?}"));
        self.process.shards[shard] = match destination {
            None => Shard::Held(id),
            Some(Destination::Append) => {
                assert!(!self.process.has_write(), "an append beside a write");
                assert_eq!(
                    self.redis.restored,
                    self.log.len(),
                    "an append before the log is restored"
                );
                let call = self.redis.call(Command::Append(id));
                self.appended_by.insert(id, self.process.number);
                Shard::Appending { id, call }
            }
            Some(Destination::Write) => Shard::Writing(id),
            Some(Destination::Refused) => {
                self.answer(id, false);
                Shard::Idle
            }
        };
    }

    /// Lets a sealed batch pass once the appends have ended that had outlived a sender by then.
    fn pass_after(&mut self, shard: usize, id: SendId, outlived: Vec<u64>) {
        let running = self.process.outlived(|id| self.is_waited_for(id));
        let is_direct = self.process.machine.mode() == StoreMode::Direct;
        if is_direct && outlived.iter().any(|call| running.contains(call)) {
            self.process.shards[shard] = Shard::Sealed { id, outlived };
        } else if self.is_waited_for(id) {
            self.pass(shard, id);
        } else {
            self.process.shards[shard] = Shard::Idle;
        }
    }

    fn shard_step(&mut self) {
        let at = self.random.below(SHARDS);
        match self.process.shards[at].clone() {
            Shard::Idle | Shard::Stalled => {}
            Shard::Sealed { id, outlived } => self.pass_after(at, id, outlived),
            Shard::Held(id) if self.is_waited_for(id) => self.pass(at, id),
            Shard::Held(_) => self.process.shards[at] = Shard::Idle,
            Shard::Writing(id) => {
                self.process.shards[at] = Shard::Idle;
                self.written(id);
            }
            Shard::Appending { id, call } => {
                if let Some(reply) = self.redis.reply(call) {
                    self.process.shards[at] = Shard::Idle;
                    if reply == Reply::Done {
                        self.on(StoreEvent::AppendEnded { was_hanging: false, is_final: true });
                        self.answer(id, true);
                    } else if self.refused(id, false) {
                        self.process.shards[at] = Shard::Writing(id);
                    }
                } else if self.random.chance(self.plan.breaks) {
                    // Redis may still run it.
                    self.process.shards[at] = Shard::Idle;
                    self.on(StoreEvent::Queue { is_usable: false });
                    self.on(StoreEvent::AppendEnded { was_hanging: false, is_final: false });
                    self.process.lost.push(call);
                    self.answer(id, false);
                } else if self.random.chance(self.plan.stalls) {
                    let stalls = (!self.has_log).then_some(at);
                    self.process.shards[at] = stalls.map_or(Shard::Idle, |_| Shard::Stalled);
                    self.process.late.push(Late::Appending { id, call, stalls });
                    self.on(StoreEvent::AppendHangs);
                }
            }
        }
    }

    /// An append was refused. Returns whether its batch is written to the log.
    fn refused(&mut self, id: SendId, was_hanging: bool) -> bool {
        let may_write = self.process.machine.on_refused(was_hanging);
        self.note(|| format!("refused {id}, written: {may_write}"));
        self.count_mode();
        if may_write && !self.is_waited_for(id) {
            self.on(StoreEvent::WriteEnded);
            return false;
        }
        if !may_write {
            self.answer(id, false);
        }
        may_write
    }

    /// Ends a write, with success or not.
    fn written(&mut self, id: SendId) {
        let is_ok = !self.random.chance(self.plan.disk_fails);
        if is_ok {
            self.log.push(id);
        }
        self.on(StoreEvent::WriteEnded);
        self.answer(id, is_ok);
    }

    fn late_step(&mut self) {
        if self.process.late.is_empty() {
            return;
        }
        let at = self.random.below(self.process.late.len());
        match self.process.late[at].clone() {
            Late::Writing(id) => {
                self.process.late.swap_remove(at);
                self.written(id);
            }
            Late::Appending { id, call, stalls } => match self.redis.reply(call) {
                Some(Reply::Done) => {
                    self.late_ended(at, stalls);
                    self.on(StoreEvent::AppendEnded { was_hanging: true, is_final: true });
                    self.answer(id, true);
                }
                Some(Reply::Refused) => {
                    self.late_ended(at, stalls);
                    if self.refused(id, true) {
                        self.process.late.push(Late::Writing(id));
                    }
                }
                // The connection is closed from Redis' side.
                None if !self.redis.is_hung && self.random.chance(100) => {
                    self.late_ended(at, stalls);
                    self.redis.close(call);
                    // Redis may have run it, with the answer on its way.
                    self.redis.reply(call);
                    self.on(StoreEvent::AppendEnded { was_hanging: true, is_final: true });
                    self.answer(id, false);
                }
                None => {}
            },
        }
    }

    fn late_ended(&mut self, at: usize, stalls: Option<usize>) {
        self.process.late.swap_remove(at);
        if let Some(shard) = stalls {
            self.process.shards[shard] = Shard::Idle;
        }
    }

    fn confirm(&mut self) {
        if self.redis.is_hung {
            return;
        }
        if self.redis.is_claimed {
            self.on(StoreEvent::ClaimTheirs);
        } else if !self.has_log {
            self.on(StoreEvent::ClaimFree);
        } else {
            if self.process.restorer == Restorer::Idle {
                self.process.restored = Some(self.redis.restored);
            }
            let is_new = std::mem::take(&mut self.redis.was_claimed);
            self.on(StoreEvent::ClaimOurs { is_new });
        }
    }

    fn hold_step(&mut self) {
        if self.random.chance(200) {
            let has_run_out = self.random.chance(500);
            self.on(if has_run_out { StoreEvent::HoldRanOut } else { StoreEvent::HoldAllowed });
        }
    }

    fn restorer_step(&mut self) {
        if let Restorer::Restoring { call, through } = self.process.restorer {
            match self.redis.reply(call) {
                Some(Reply::Done) => {
                    self.process.restorer = Restorer::Idle;
                    self.process.restored = Some(through);
                }
                Some(Reply::Refused) => self.restore_failed(),
                None if self.random.chance(self.plan.breaks) => self.restore_failed(),
                None => {}
            }
            return;
        }
        if self.process.machine.needs_fence() && !self.redis.is_hung {
            self.redis.fence();
            self.on(StoreEvent::Fenced);
            return;
        }
        let mode = self.process.machine.mode();
        if !matches!(mode, StoreMode::Restoring | StoreMode::Closing) {
            return;
        }
        let Some(restored) = self.process.restored else { return };
        let through = (restored + CHUNK).min(self.log.len());
        self.on(StoreEvent::ChunkRead { is_last: through == self.log.len() });
        let records = self.log[restored..through].to_vec();
        if records.is_empty() {
            if self.process.machine.may_finish() {
                self.on(StoreEvent::LogEmpty);
            }
            return;
        }
        assert!(!self.process.has_append(), "restored beside an append");
        let command = Command::Restore { after: restored, records };
        let call = self.redis.call(command);
        self.process.restorer = Restorer::Restoring { call, through };
    }

    /// Lets the restorer ask Redis again for the number of restored records.
    fn restore_failed(&mut self) {
        self.process.restorer = Restorer::Idle;
        self.process.restored = None;
        self.on(StoreEvent::ChunkFailed);
    }

    /// Ends the process with everything that is under way. Commands that were sent may still be
    /// run, and packs that were being written may survive.
    fn crash(&mut self) {
        self.note(|| "crash".to_owned());
        let writes = self.process.shards.clone();
        for shard in writes {
            if let Shard::Writing(id) = shard
                && self.random.chance(500)
            {
                self.log.push(id);
            }
        }
        for sender in &mut self.senders {
            sender.waits_for = None;
        }
        self.process = Process::new(self.process.number + 1, SHARDS, self.has_log);
        self.mode = self.process.machine.mode();
    }

    pub(super) fn check(&self) {
        let process = &self.process;
        let mode = process.machine.mode();
        assert!(mode != StoreMode::Direct || !process.has_write(), "direct beside a write");
        let is_restored = matches!(mode, StoreMode::Restoring | StoreMode::Closing);
        assert!(!is_restored || !process.has_append(), "restored beside an append");
        assert!(self.redis.restored <= self.log.len());
        // Any append counts, of any process, given up or not.
        let is_append = |call: &super::redis::Call| match call.command {
            Command::Append(_) => true,
            // Until the restorer notices that it had lost the claim, Redis refuses what is restored.
            Command::Foreign => !self.redis.was_claimed,
            Command::Restore { .. } => false,
        };
        if is_restored {
            assert!(!self.redis.calls.iter().any(is_append), "restored before an append");
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.process.machine.mode() == StoreMode::Direct
            && self.process.is_idle()
            && self.redis.calls.is_empty()
    }

    /// Checks that everything answered 200 is in the stream, once and in order.
    pub(super) fn check_end(&self) {
        assert!(self.is_over(), "{:?}", self.process);
        assert_eq!(self.redis.restored, self.log.len());
        let mut first: BTreeMap<(usize, u32), usize> = BTreeMap::new();
        let mut known = HashSet::new();
        for (at, id) in self.redis.stream.iter().enumerate() {
            assert!(known.insert(*id), "{id} is stored twice");
            first.entry(self.sends[*id]).or_insert(at);
        }
        for id in &self.accepted {
            assert!(known.contains(id), "{id} was answered 200 and is lost");
        }
        self.check_repeats();
        for (sender, of) in self.senders.iter().enumerate() {
            let places = (0..of.number).map(|number| first[&(sender, number)]);
            assert!(places.is_sorted(), "sender {sender} is out of order");
        }
    }

    /// Checks that no try was appended after a later webhook of its sender, except by a process that
    /// was killed.
    fn check_repeats(&self) {
        let mut newest: HashMap<usize, SendId> = HashMap::new();
        for id in &self.redis.stream {
            let (sender, number) = self.sends[*id];
            let last = newest.entry(sender).or_insert(*id);
            let (process, of_last) = (self.appended_by.get(id), self.appended_by.get(last));
            if number > self.sends[*last].1 {
                *last = *id;
            } else if number < self.sends[*last].1 && process.is_some() {
                assert!(process < of_last, "{id} is stored after {last}");
            }
        }
    }
}
