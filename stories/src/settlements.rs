//! Records settlements of consumers on their way to Redis, and sends them again later as delayed
//! duplicates.
//!
//! A duplicate of a settlement that Redis confirmed must change nothing, whenever it comes.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use rand::RngExt;
use rand::seq::IndexedRandom;
use redis::{RedisResult, Value};
use tokio::time::timeout;

use crate::redis_server::connect;
use crate::report::say;

/// Suffix of the key that holds the mark of the last settlement. Only the settlement script takes
/// this key.
const MARK_KEY: &[u8] = b":settled";
/// Arguments of the script before its lists.
const HEAD: usize = 17;
/// Width of an element of each list of the script. The last two lists are fields to set and to
/// delete.
const LISTS: [usize; 9] = [1, 1, 2, 1, 1, 10, 1, 3, 2];
/// Numbers of the keys that hold chunks, and which webhooks of them are settled.
const CHUNKS: &[u8] = b"13";
const CHUNKS_DONE: &[u8] = b"14";
/// Settlements of each kind that are kept: more than an episode has of the rare kinds.
const KEPT_MAX: usize = 200;
/// Time limit of one exchange with a Redis that may just have ended.
const ANSWER: Duration = Duration::from_secs(2);

/// One settlement as it was sent.
#[derive(Debug)]
pub struct Settlement {
    /// Words of the command.
    words: Vec<Vec<u8>>,
    /// True if it is the first settlement of a leader.
    is_first: bool,
    /// True if it writes chunks of lanes.
    is_move: bool,
    /// True if it settles webhooks in chunks of lanes.
    settles_chunks: bool,
    /// True once Redis confirmed that it is applied.
    is_confirmed: AtomicBool,
}

/// The recorded settlements, and the results of their duplicates.
#[derive(Debug, Default)]
pub struct Recorder {
    kept: Mutex<Kept>,
    sent: AtomicUsize,
    refused: AtomicUsize,
    known: AtomicUsize,
    applied: AtomicUsize,
    applied_twice: AtomicUsize,
    firsts: AtomicUsize,
    moves: AtomicUsize,
    chunks: AtomicUsize,
    late: AtomicUsize,
}

#[derive(Debug, Default)]
struct Kept {
    firsts: Vec<Arc<Settlement>>,
    of_lanes: Vec<Arc<Settlement>>,
    others: Vec<Arc<Settlement>>,
}

/// Counts of duplicates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Duplicates {
    /// Duplicates sent and answered.
    pub sent: usize,
    /// Duplicates refused, because another settlement was applied last or another instance leads.
    pub refused: usize,
    /// Duplicates recognised as the settlement that was applied last. They changed nothing.
    pub known: usize,
    /// Duplicates applied for the first time: the original never reached Redis.
    pub applied: usize,
    /// Duplicates applied although Redis had confirmed the original. There must be none.
    pub applied_twice: usize,
    /// Duplicates sent of a leader's first settlement.
    pub firsts: usize,
    /// Duplicates sent of settlements that write chunks.
    pub moves: usize,
    /// Duplicates sent of settlements of webhooks in chunks.
    pub chunks: usize,
    /// Originals that arrived so late that Redis refused them.
    pub late: usize,
}

/// One connection whose settlements are recorded.
#[derive(Debug)]
pub(crate) struct Watched {
    recorder: Arc<Recorder>,
    /// The incomplete command.
    part: Vec<u8>,
    /// The settlement that the next reply answers, if any.
    asked: Option<Arc<Settlement>>,
}

impl Settlement {
    /// Parses a command; `None` if it is not a settlement.
    fn of(words: Vec<Vec<u8>>) -> Option<Self> {
        let is_script = words.first()?.eq_ignore_ascii_case(b"EVALSHA");
        let keys: usize = number(words.get(2)?)?;
        let first_argument = 3 + keys;
        let is_settlement = words.get(3..first_argument)?.iter().any(|key| key.ends_with(MARK_KEY));
        if !is_script || !is_settlement {
            return None;
        }
        let arguments = &words[first_argument..];
        let (token, previous) = (arguments.first()?, arguments.get(8)?);
        let leader = previous.split(|byte| *byte == b':').next().unwrap_or_default();
        let [set, deleted] = lane_fields(arguments)?;
        let names = |fields: &[Vec<u8>], width: usize, key: &[u8]| {
            fields.chunks_exact(width).any(|field| field[0] == key)
        };
        Some(Self {
            is_first: leader != &token[..],
            is_move: names(set, 3, CHUNKS),
            settles_chunks: names(set, 3, CHUNKS_DONE) || names(deleted, 2, CHUNKS),
            is_confirmed: AtomicBool::new(false),
            words,
        })
    }

    /// Name of the key with the mark.
    fn mark_key(&self) -> &[u8] {
        let key = self.words.iter().find(|word| word.ends_with(MARK_KEY));
        key.expect("a settlement has it")
    }
}

/// The fields to set and the fields to delete.
fn lane_fields(arguments: &[Vec<u8>]) -> Option<[&[Vec<u8>]; 2]> {
    let mut rest = arguments.get(HEAD..)?;
    let mut lists = [&rest[..0]; LISTS.len()];
    for (list, width) in lists.iter_mut().zip(LISTS) {
        let (count, after) = rest.split_first()?;
        (*list, rest) = after.split_at_checked(number(count)? * width)?;
    }
    Some([lists[LISTS.len() - 2], lists[LISTS.len() - 1]])
}

impl Recorder {
    /// Results of the duplicates so far.
    pub fn duplicates(&self) -> Duplicates {
        let count = |of: &AtomicUsize| of.load(Ordering::Relaxed);
        Duplicates {
            sent: count(&self.sent),
            refused: count(&self.refused),
            known: count(&self.known),
            applied: count(&self.applied),
            applied_twice: count(&self.applied_twice),
            firsts: count(&self.firsts),
            moves: count(&self.moves),
            chunks: count(&self.chunks),
            late: count(&self.late),
        }
    }

    /// Sends one recorded settlement to the Redis at `socket` on a new connection. First
    /// settlements of a leader, settlements of lanes and all others are equally likely.
    pub async fn send_one_again(&self, socket: &Path) {
        let chosen = {
            let (kept, mut chance) = (self.kept(), rand::rng());
            let kinds = [&kept.firsts, &kept.of_lanes, &kept.others];
            let kind = kinds[chance.random_range(0..kinds.len())];
            kind.choose(&mut chance).cloned()
        };
        if let Some(settlement) = chosen {
            self.send_again(socket, &settlement).await;
        }
    }

    /// Sends all recorded settlements, in no particular order.
    pub async fn send_all_again(&self, socket: &Path) {
        let all: Vec<_> = {
            let kept = self.kept();
            [&kept.firsts, &kept.of_lanes, &kept.others].into_iter().flatten().cloned().collect()
        };
        for settlement in all {
            self.send_again(socket, &settlement).await;
        }
    }

    async fn send_again(&self, socket: &Path, settlement: &Settlement) {
        let was_confirmed = settlement.is_confirmed.load(Ordering::Relaxed);
        let Ok(Ok(replies)) = timeout(ANSWER, exchange(socket, settlement)).await else { return };
        let [Ok(before), reply, Ok(after)] = &replies[..] else { return };
        let count = match reply {
            Ok(_) if before == after => &self.known,
            Ok(_) if was_confirmed => {
                let Settlement { is_first, is_move, settles_chunks, .. } = settlement;
                say(&format!(
                    "settlements: applied twice, after {before:?}; first of a leader: {is_first}, \
                     moves: {is_move}, settles chunks: {settles_chunks}"
                ));
                &self.applied_twice
            }
            Ok(_) => &self.applied,
            Err(error) if matches!(error.code(), Some("FENCED" | "NOGROUP")) => &self.refused,
            // A Redis that was restarted does not have the script yet.
            Err(_) => return,
        };
        add(count, true);
        add(&self.sent, true);
        add(&self.firsts, settlement.is_first);
        add(&self.moves, settlement.is_move);
        add(&self.chunks, settlement.settles_chunks);
    }

    fn keep(&self, settlement: &Arc<Settlement>) {
        let mut kept = self.kept();
        let is_of_lanes = settlement.is_move || settlement.settles_chunks;
        let kind = match settlement.is_first {
            true => &mut kept.firsts,
            false if is_of_lanes => &mut kept.of_lanes,
            false => &mut kept.others,
        };
        if kind.len() == KEPT_MAX {
            // Replaces a random one, so that some are as old as the episode.
            kind.swap_remove(rand::random_range(0..KEPT_MAX));
        }
        kind.push(Arc::clone(settlement));
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().expect("no recorder panicked")
    }
}

/// Reads the mark before and after the settlement, in one transaction.
async fn exchange(socket: &Path, settlement: &Settlement) -> RedisResult<Vec<RedisResult<Value>>> {
    let mut connection = connect(socket).await?;
    let (name, arguments) = settlement.words.split_first().expect("a command has a name");
    let mut pipe = redis::pipe();
    pipe.atomic().ignore_errors();
    pipe.cmd("GET").arg(settlement.mark_key());
    pipe.cmd(std::str::from_utf8(name).expect("a name of letters"));
    for argument in arguments {
        pipe.arg(&argument[..]);
    }
    pipe.cmd("GET").arg(settlement.mark_key());
    pipe.query_async(&mut connection).await
}

impl Duplicates {
    /// Adds the counts of another cell.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            sent: self.sent + other.sent,
            refused: self.refused + other.refused,
            known: self.known + other.known,
            applied: self.applied + other.applied,
            applied_twice: self.applied_twice + other.applied_twice,
            firsts: self.firsts + other.firsts,
            moves: self.moves + other.moves,
            chunks: self.chunks + other.chunks,
            late: self.late + other.late,
        }
    }
}

impl Watched {
    pub(crate) fn new(recorder: &Arc<Recorder>) -> Self {
        Self { recorder: Arc::clone(recorder), part: Vec::new(), asked: None }
    }

    /// Records the settlements in a request.
    pub(crate) fn on_request(&mut self, request: &[u8]) {
        self.part.extend_from_slice(request);
        while let Some((words, length)) = command(&self.part) {
            self.part.drain(..length);
            self.asked = Settlement::of(words).map(Arc::new);
            if let Some(settlement) = &self.asked {
                self.recorder.keep(settlement);
            }
        }
    }

    /// True if the last command was complete and a settlement.
    pub(crate) fn has_asked(&self) -> bool {
        self.part.is_empty() && self.asked.is_some()
    }

    /// Processes a reply. Returns true if it answers a settlement.
    pub(crate) fn on_reply(&mut self, reply: &[u8]) -> bool {
        let Some(settlement) = self.asked.take() else { return false };
        let is_refused = [&b"-FENCED"[..], b"-NOGROUP"].iter().any(|no| reply.starts_with(no));
        add(&self.recorder.late, is_refused);
        settlement.is_confirmed.fetch_or(reply.starts_with(b"+"), Ordering::Relaxed);
        true
    }
}

/// True if a part of a request begins a settlement.
pub(crate) fn is_settlement(request: &[u8]) -> bool {
    let has = |word: &[u8]| request.windows(word.len()).any(|bytes| bytes == word);
    has(b"EVALSHA") && has(MARK_KEY)
}

/// Words and length of the first command, if it is complete.
fn command(bytes: &[u8]) -> Option<(Vec<Vec<u8>>, usize)> {
    let (count, mut rest) = header(bytes, b'*')?;
    let mut words = Vec::with_capacity(count);
    for _ in 0..count {
        let (length, after) = header(rest, b'$')?;
        words.push(after.get(..length)?.to_vec());
        rest = after.get(length + 2..)?;
    }
    Some((words, bytes.len() - rest.len()))
}

/// Parses the number after a sign. Also returns the bytes after its line.
fn header(bytes: &[u8], sign: u8) -> Option<(usize, &[u8])> {
    let end = bytes.windows(2).position(|two| two == b"\r\n")?;
    let (first, digits) = bytes[..end].split_first()?;
    assert_eq!(*first, sign, "a request of a consumer is an array of strings");
    Some((number(digits)?, &bytes[end + 2..]))
}

fn number(text: &[u8]) -> Option<usize> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn add(count: &AtomicUsize, applies: bool) {
    count.fetch_add(usize::from(applies), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encode(words: &[&str]) -> Vec<u8> {
        let strings = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len()));
        format!("*{}\r\n{}", words.len(), strings.collect::<String>()).into_bytes()
    }

    /// A settlement after `previous` with these lists, each as the number of elements and the
    /// elements.
    fn settlement(previous: &str, lists: &[&str]) -> Vec<u8> {
        let mut words = vec!["EVALSHA", "sha", "2", "{spillway}:in", "{spillway}:http:settled"];
        words.extend(["token", "7", "http", "", "", "0", "0", "0", previous]);
        words.extend(["0"; 8]);
        words.extend(lists);
        encode(&words)
    }

    fn recorded(bytes: &[u8]) -> Vec<Arc<Settlement>> {
        let recorder = Arc::default();
        let mut watched = Watched::new(&recorder);
        bytes.chunks(5).for_each(|piece| watched.on_request(piece));
        let kept = recorder.kept();
        [&kept.firsts, &kept.of_lanes, &kept.others].into_iter().flatten().cloned().collect()
    }

    #[test]
    fn a_settlement_is_recognised_among_other_commands_and_in_pieces() {
        let none = ["0"; LISTS.len()];
        let bytes = [
            encode(&["GET", "{spillway}:http:settled"]),
            settlement("token:6", &none),
            encode(&["PING"]),
        ];
        let found = recorded(&bytes.concat());
        assert_eq!(found.len(), 1);
        assert!(!found[0].is_first && !found[0].is_move && !found[0].settles_chunks);
        assert!(is_settlement(&bytes[1]) && !is_settlement(&bytes[0]));
    }

    #[test]
    fn the_first_settlement_of_a_leader_names_another_leaders() {
        for (previous, is_first) in [("", true), ("other:6", true), ("token:6", false)] {
            assert_eq!(recorded(&settlement(previous, &["0"; LISTS.len()]))[0].is_first, is_first);
        }
    }

    #[test]
    fn what_moves_and_what_settles_chunks_is_recognised() {
        let before = ["0", "0", "1", "5-0", "13", "0", "0", "0", "0"];
        let set = [&before[..], &["1", "13", "00000000000000ab:1", "bytes", "0"]].concat();
        let bits = [&before[..], &["1", "14", "00000000000000ab:1", "bits", "0"]].concat();
        let gone = [&before[..], &["0", "1", "13", "00000000000000ab:1"]].concat();
        for (lists, is_move, settles) in
            [(set, true, false), (bits, false, true), (gone, false, true)]
        {
            let found = recorded(&settlement("token:6", &lists));
            assert_eq!((found[0].is_move, found[0].settles_chunks), (is_move, settles));
        }
    }
}
