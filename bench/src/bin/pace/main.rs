//! Offers prepared webhooks at a fixed rate and measures their latencies. It is an open loop that
//! uses little of the CPU that it shares with the receiver. Bodies and signatures are sent in turn.
//! Ids, product and time are new in each request, so none is a duplicate of another.
//!
//! Request number `k` is due at `start + k / rate`. Its latency counts from that time, whether it
//! waited for a connection, for this program or for the receiver. A receiver that stalls is charged
//! with every request that became due meanwhile (no coordinated omission, as in wrk2). The
//! *lateness* of this program itself, sent minus due, is reported separately.
//!
//! One thread uses one epoll whose time-out is in nanoseconds. It never spins, because the receiver
//! needs the CPU. A request is sent once; a request lost with a broken connection is unanswered.
//! Bounded by `--rate` × `--seconds` requests and `--connections-max` connections.

mod connection;
mod stamp;

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::Parser;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::fd::OwnedFd;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use time::OffsetDateTime;

use crate::connection::{Connection, State, connecting};
use crate::stamp::Places;

/// Time limit for the last answers, and for the first connections to open.
const PATIENCE: Duration = Duration::from_secs(10);
/// Sends in a row after which answers are read, so that they do not wait for a long burst to end.
const BURST_MAX: usize = 16;
/// Most events taken from the kernel at once.
const EVENTS_MAX: usize = 256;
/// Digits before each request that give its length; see `bench::encode::Format::Wrk`.
const LENGTH_DIGITS: usize = 10;

/// Offers prepared webhooks at a fixed rate and prints their latencies as one line of JSON.
#[derive(Parser)]
struct Options {
    /// Address of the receiver.
    #[arg(long)]
    address: SocketAddr,
    /// File with webhooks, as `generate --format wrk` writes them; sent in turn, each with new ids,
    /// a new product and the time of sending.
    #[arg(long)]
    requests: PathBuf,
    /// Webhooks per second.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: u32,
    /// Duration in seconds.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    seconds: u32,
    /// Connections that are opened before the first request is sent.
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// Most connections, so that no due request waits for one.
    #[arg(long, default_value_t = 1024)]
    connections_max: usize,
    /// File for one line per request: the time it was due and its latency, both in microseconds,
    /// and its status; 0 is no answer.
    #[arg(long)]
    out: Option<PathBuf>,
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let connections = 1..=options.connections_max;
    ensure!(connections.contains(&options.connections), "--connections is not in {connections:?}");
    let requests = Requests::read(&options.requests)
        .with_context(|| format!("requests {}", options.requests.display()))?;
    let mut pace = Pace::new(&options, requests)?;
    pace.connect(options.connections)?;
    pace.run()?;
    if let Some(path) = &options.out {
        pace.write(path).with_context(|| format!("cannot write {}", path.display()))?;
    }
    println!("{}", pace.report());
    Ok(())
}

/// Prepared webhooks, in their form on the wire.
struct Requests {
    bytes: Vec<u8>,
    spans: Vec<Range<usize>>,
    places: Vec<Places>,
    /// Random part of the ids, so that two runs do not share any.
    run: u64,
}

impl Requests {
    fn read(path: &Path) -> anyhow::Result<Self> {
        let bytes = fs::read(path)?;
        let mut spans = Vec::new();
        let mut places = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            let start = at + LENGTH_DIGITS;
            let digits = bytes.get(at..start).and_then(|digits| str::from_utf8(digits).ok());
            let Some(length) = digits.and_then(|digits| digits.parse::<usize>().ok()) else {
                bail!("no length at byte {at}");
            };
            at = start + length;
            ensure!(length > 0 && at <= bytes.len(), "the request at byte {start} is cut off");
            let found = Places::find(&bytes[start..at]);
            places.push(found.with_context(|| format!("the request at byte {start}"))?);
            spans.push(start..at);
        }
        ensure!(!spans.is_empty(), "it is empty");
        Ok(Self { bytes, spans, places, run: rand::random() })
    }

    /// Writes request `number`, with the values that it alone has, into a buffer. Its time of sending is that at which it
    /// was due: a wait for a free connection is part of its way.
    fn write(&self, number: usize, lateness: Duration, buffer: &mut Vec<u8>) {
        let index = number % self.spans.len();
        buffer.clear();
        buffer.extend_from_slice(&self.bytes[self.spans[index].clone()]);
        let due = OffsetDateTime::now_utc() - lateness;
        self.places[index].stamp(buffer, self.run, number as u64, due);
    }
}

/// Result of a request. In microseconds rather than a `Duration`, because there are millions.
#[derive(Clone, Copy, Default)]
struct Outcome {
    latency_us: u32,
    /// `None` if the request was not sent.
    lateness_us: Option<u32>,
    /// Status of the answer; 0 if there is none.
    status: u16,
}

/// State of the run. Times are since its start.
struct Pace {
    address: SocketAddr,
    requests: Requests,
    rate: u64,
    start: Instant,
    cpu_before: Duration,
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
    buffer: Vec<u8>,
    /// Connections by their number in epoll. Empty places are used again.
    connections: Vec<Option<Connection>>,
    vacant: Vec<usize>,
    /// Free connections, of which one is drawn at random for each request, as if senders were
    /// independent. In turn, requests would come in clumps, because connections that one core
    /// answered together become free together.
    free: Vec<usize>,
    random: SmallRng,
    opening: usize,
    kept: usize,
    connections_max: usize,
    /// Number of requests that are due by now. `waiting` holds those that wait for a connection.
    due: usize,
    waiting: VecDeque<usize>,
    outcomes: Vec<Outcome>,
    settled: usize,
    sent: usize,
    last_sent_at: Duration,
}

impl Pace {
    fn new(options: &Options, requests: Requests) -> anyhow::Result<Self> {
        // Otherwise a time-out is late by up to 50 µs, the kernel's default (prctl(2)).
        fs::write("/proc/self/timerslack_ns", "1").context("cannot set the timer slack")?;
        Ok(Self {
            address: options.address,
            requests,
            rate: options.rate.into(),
            start: Instant::now(),
            cpu_before: cpu(),
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            events: Vec::with_capacity(EVENTS_MAX),
            buffer: vec![0; 16 << 10],
            connections: Vec::new(),
            vacant: Vec::new(),
            free: Vec::new(),
            random: SmallRng::seed_from_u64(0),
            opening: 0,
            kept: options.connections,
            connections_max: options.connections_max,
            due: 0,
            waiting: VecDeque::new(),
            outcomes: vec![Outcome::default(); options.rate as usize * options.seconds as usize],
            settled: 0,
            sent: 0,
            last_sent_at: Duration::ZERO,
        })
    }

    fn connect(&mut self, connections: usize) -> anyhow::Result<()> {
        for _ in 0..connections {
            self.open().with_context(|| format!("cannot connect to {}", self.address))?;
        }
        while self.opening > 0 && self.start.elapsed() < PATIENCE {
            self.poll(PATIENCE)?;
        }
        let open = self.free.len();
        ensure!(open == connections, "only {open} of {connections} connections opened");
        Ok(())
    }

    fn run(&mut self) -> io::Result<()> {
        self.start = Instant::now();
        self.cpu_before = cpu();
        let end = self.due_at(self.outcomes.len()) + PATIENCE;
        while self.settled < self.outcomes.len() && self.start.elapsed() < end {
            self.fall_due();
            self.send_waiting();
            self.open_for_waiting();
            let wake = match self.due < self.outcomes.len() {
                _ if !self.waiting.is_empty() && !self.free.is_empty() => Duration::ZERO,
                true => self.due_at(self.due),
                false => end,
            };
            self.poll(wake.saturating_sub(self.start.elapsed()))?;
        }
        for index in 0..self.connections.len() {
            let connection = self.connections[index].take();
            if let Some(Connection { state: State::Busy { number, .. }, .. }) = connection {
                self.settle(number, 0);
            }
        }
        while let Some(number) = self.waiting.pop_front() {
            self.settle(number, 0);
        }
        Ok(())
    }

    fn due_at(&self, number: usize) -> Duration {
        let (seconds, rest) = (number as u64 / self.rate, number as u64 % self.rate);
        Duration::from_secs(seconds) + Duration::from_nanos(rest * 1_000_000_000 / self.rate)
    }

    fn fall_due(&mut self) {
        let now = self.start.elapsed();
        while self.due < self.outcomes.len() && self.due_at(self.due) <= now {
            self.waiting.push_back(self.due);
            self.due += 1;
        }
    }

    fn send_waiting(&mut self) {
        for _ in 0..BURST_MAX {
            if self.waiting.is_empty() || self.free.is_empty() {
                return;
            }
            let index = self.free.swap_remove(self.random.random_range(..self.free.len()));
            let number = self.waiting.pop_front().expect("BUG: it is not empty");
            let now = self.start.elapsed();
            let lateness = now.saturating_sub(self.due_at(number));
            self.outcomes[number].lateness_us = Some(micros(lateness));
            self.sent += 1;
            self.last_sent_at = now;
            let connection = self.connections[index].as_mut().expect("BUG: a free one is open");
            self.requests.write(number, lateness, &mut connection.request);
            connection.state = State::Busy { number, sent: 0 };
            if connection.send().is_err() {
                self.close(index);
            }
        }
    }

    fn open_for_waiting(&mut self) {
        let missing = self.waiting.len().saturating_sub(self.free.len() + self.opening);
        let open = self.connections.len() - self.vacant.len();
        for _ in 0..missing.min(self.connections_max - open) {
            if self.open().is_err() {
                self.give_up_one();
            }
        }
    }

    fn open(&mut self) -> io::Result<()> {
        let stream = connecting(self.address)?;
        let index = self.vacant.pop().unwrap_or(self.connections.len());
        if index == self.connections.len() {
            self.connections.push(None);
        }
        // Edge-triggered, so that one registration lasts as long as the connection.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::RDHUP;
        let data = epoll::EventData::new_u64(index as u64);
        if let Err(error) = epoll::add(&self.epoll, &stream, data, flags | epoll::EventFlags::ET) {
            self.vacant.push(index);
            return Err(error.into());
        }
        self.connections[index] = Some(Connection::opening(stream));
        self.opening += 1;
        Ok(())
    }

    /// Waits at most `timeout` for events and handles them. Sends nothing new: a connection in the
    /// place of a closed one must not get the events of the closed one.
    fn poll(&mut self, timeout: Duration) -> io::Result<()> {
        let mut events = std::mem::take(&mut self.events);
        events.clear();
        let timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
        match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in &events {
            let flags = event.flags;
            self.advance(event.data.u64() as usize, flags);
        }
        self.events = events;
        Ok(())
    }

    fn advance(&mut self, index: usize, flags: epoll::EventFlags) {
        let connection = self.connections[index].as_mut().expect("BUG: a closed one has no event");
        let result = match connection.state {
            State::Opening => connection.opened(),
            State::Free => connection.receive(&mut self.buffer, flags),
            State::Busy { .. } => {
                connection.send().and_then(|()| connection.receive(&mut self.buffer, flags))
            }
        };
        match (result, connection.state) {
            (Ok(None), State::Opening) => {
                connection.state = State::Free;
                self.opening -= 1;
                self.free.push(index);
            }
            (Ok(None), _) => {}
            (Ok(Some(answer)), State::Busy { number, sent }) => {
                let whole = sent == connection.request.len();
                connection.state = State::Free;
                connection.has_answered = true;
                self.free.push(index);
                self.settle(number, answer.status);
                if answer.closes || !whole {
                    self.close(index);
                }
            }
            // An unexpected answer, or a failed read.
            (Ok(Some(_)) | Err(_), _) => self.close(index),
        }
    }

    /// Closes a connection. One that has answered before is reopened at once, so that the next
    /// request need not wait for it. Others are reopened only when needed. Otherwise a receiver
    /// that refuses all connections would get attempts in a loop.
    fn close(&mut self, index: usize) {
        let connection = self.connections[index].take().expect("BUG: it is closed once");
        self.vacant.push(index);
        match connection.state {
            State::Opening => {
                self.opening -= 1;
                self.give_up_one();
            }
            State::Free => self.free.retain(|free| *free != index),
            State::Busy { number, .. } => self.settle(number, 0),
        }
        let open = self.connections.len() - self.vacant.len();
        if connection.has_answered && open < self.kept && self.open().is_err() {
            self.give_up_one();
        }
    }

    /// Settles the oldest waiting request without an answer, because there is no connection for it.
    fn give_up_one(&mut self) {
        if let Some(number) = self.waiting.pop_front() {
            self.settle(number, 0);
        }
    }

    fn settle(&mut self, number: usize, status: u16) {
        let latency = self.start.elapsed().saturating_sub(self.due_at(number));
        let outcome = &mut self.outcomes[number];
        outcome.latency_us = micros(latency);
        outcome.status = status;
        self.settled += 1;
    }

    fn write(&self, path: &Path) -> io::Result<()> {
        let mut out = BufWriter::new(File::create(path)?);
        for (number, outcome) in self.outcomes.iter().enumerate() {
            let due_us = self.due_at(number).as_micros();
            writeln!(out, "{due_us},{},{}", outcome.latency_us, outcome.status)?;
        }
        out.flush()
    }

    /// Returns the figures. Times are in ms; latencies include answers with any status.
    fn report(&self) -> Value {
        let cpu = (cpu() - self.cpu_before).as_secs_f64();
        let answered = self.outcomes.iter().filter(|outcome| outcome.status != 0);
        let mut statuses = BTreeMap::<String, usize>::new();
        for outcome in answered.clone() {
            *statuses.entry(outcome.status.to_string()).or_default() += 1;
        }
        let latencies = sorted(answered.map(|outcome| outcome.latency_us));
        let lateness = sorted(self.outcomes.iter().filter_map(|outcome| outcome.lateness_us));
        // Requests sent after the end of the time were not offered at this rate.
        let seconds = self.due_at(self.outcomes.len()).max(self.last_sent_at).as_secs_f64();
        json!({
            "asked": self.outcomes.len(),
            "offered": self.sent,
            "offered_per_second": self.sent as f64 / seconds,
            "answered": statuses,
            "unanswered": self.outcomes.len() - latencies.len(),
            "latency_ms": {
                "p50": percentile_ms(&latencies, 500),
                "p90": percentile_ms(&latencies, 900),
                "p99": percentile_ms(&latencies, 990),
                "p99_9": percentile_ms(&latencies, 999),
                "longest": percentile_ms(&latencies, 1000),
            },
            "lateness_ms": {
                "p50": percentile_ms(&lateness, 500),
                "p99": percentile_ms(&lateness, 990),
                "longest": percentile_ms(&lateness, 1000),
            },
            // Largest number of connections at a time.
            "connections": self.connections.len(),
            "cpu_us_per_request": cpu * 1e6 / self.sent.max(1) as f64,
        })
    }
}

/// CPU time of this process.
fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(time).expect("BUG: CPU time is never negative")
}

fn micros(duration: Duration) -> u32 {
    u32::try_from(duration.as_micros()).unwrap_or(u32::MAX)
}

fn sorted(values: impl Iterator<Item = u32>) -> Vec<u32> {
    let mut values: Vec<u32> = values.collect();
    values.sort_unstable();
    values
}

/// The smallest value that at least this many thousandths do not exceed; `None` if there is none.
fn percentile_ms(sorted: &[u32], thousandths: usize) -> Option<f64> {
    let rank = (sorted.len() * thousandths).div_ceil(1000).max(1);
    sorted.get(rank - 1).map(|us| f64::from(*us) / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_a_value_that_was_seen() {
        let values = [1_000, 2_000, 3_000];
        assert_eq!(percentile_ms(&values, 500), Some(2.0));
        assert_eq!(percentile_ms(&values, 1000), Some(3.0));
        assert_eq!(percentile_ms(&[], 500), None);
    }
}
