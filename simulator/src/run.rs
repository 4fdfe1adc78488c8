//! Plays a scenario as a sequence of timed events.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use spillway_limiter::{Sample, Signal};

use crate::algorithm::Algorithm;
use crate::random::Random;
use crate::record::Record;
use crate::scenario::{Answer, Scenario};
use crate::server::{Arrival, Request, Server};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The change with this index happens to the backend.
    Changed(usize),
    /// A worker finishes a request.
    Finished(Request),
    /// An answer arrives.
    Answered(Request, u8),
    /// A webhook arrives.
    Offered,
    /// The consumer processes answers and sends requests.
    Woken,
}

/// A request under way.
#[derive(Debug, Clone, Copy)]
struct Flight {
    began: Duration,
    in_flight: usize,
    is_over: bool,
}

struct World<'a> {
    scenario: &'a Scenario,
    algorithm: &'a mut dyn Algorithm,
    random: Random,
    server: Server,
    record: Record,
    events: BinaryHeap<Reverse<(Duration, u64, Event)>>,
    sequence: u64,
    flights: VecDeque<Flight>,
    /// Number of the first request in `flights`.
    first: Request,
    in_flight: usize,
    backlog: usize,
    /// Answers that the consumer has not processed.
    unseen: Vec<(Flight, Answer)>,
    wake_at: Option<Duration>,
    offered: Option<f64>,
    timeout: Duration,
    tick: Duration,
}

/// Plays `scenario` with `algorithm` and `seed`.
pub fn run(scenario: &Scenario, algorithm: &mut dyn Algorithm, seed: u64) -> Record {
    let client = &scenario.client;
    let mut world = World {
        scenario,
        algorithm,
        random: Random::from_seed(seed),
        server: Server::new(scenario.server.clone()),
        record: Record::default(),
        events: BinaryHeap::new(),
        sequence: 0,
        flights: VecDeque::new(),
        first: 0,
        in_flight: 0,
        backlog: 0,
        unseen: Vec::new(),
        wake_at: None,
        offered: client.offered,
        timeout: Duration::from_secs_f64(client.timeout_ms / 1e3),
        tick: Duration::from_secs_f64(client.tick_ms / 1e3),
    };
    for (number, change) in scenario.changes.iter().enumerate() {
        world.at(Duration::from_secs_f64(change.at), Event::Changed(number));
    }
    if client.offered.is_some() {
        world.at(Duration::ZERO, Event::Offered);
    }
    world.at(Duration::ZERO, Event::Woken);
    world.play();
    world.record
}

impl World<'_> {
    fn at(&mut self, time: Duration, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((time, self.sequence, event)));
    }

    fn play(&mut self) {
        let end = self.scenario.length();
        loop {
            let next = self.events.peek().map(|Reverse((at, ..))| *at);
            let deadline = self.deadline();
            let now = next.into_iter().chain(deadline).min().unwrap_or(end);
            while self.record.row_ends() <= now.min(end) {
                self.close_row();
            }
            if now >= end {
                return;
            }
            if deadline == Some(now) {
                self.see(self.first, Answer::TimedOut, now);
            } else if let Some(Reverse((_, _, event))) = self.events.pop() {
                self.happen(event, now);
            }
        }
    }

    /// Time at which the oldest request times out.
    fn deadline(&mut self) -> Option<Duration> {
        while self.flights.front().is_some_and(|flight| flight.is_over) {
            self.flights.pop_front();
            self.first += 1;
        }
        self.flights.front().map(|flight| flight.began + self.timeout)
    }

    fn happen(&mut self, event: Event, now: Duration) {
        match event {
            Event::Changed(number) => {
                let (change, next) = (&self.scenario.changes[number], self.next());
                self.offered = change.offered.or(self.offered);
                for (request, service) in self.server.change(change, next, now, &mut self.random) {
                    self.at(now + service, Event::Finished(request));
                }
            }
            Event::Finished(request) => {
                let (is_heard, next) = self.server.finish(request, now, &mut self.random);
                if let Some((next, service)) = next {
                    self.at(now + service, Event::Finished(next));
                }
                if is_heard {
                    self.answer(request, Answer::Done, now + self.server.network());
                }
            }
            Event::Answered(request, answer) => {
                self.see(request, ANSWERS[usize::from(answer)], now)
            }
            Event::Offered => {
                self.backlog += 1;
                let mean = 1.0 / self.offered.unwrap_or(1.0);
                let pause = Duration::from_secs_f64(self.random.exponential(mean));
                self.at(now + pause, Event::Offered);
                self.wake(now);
            }
            Event::Woken => {
                if self.wake_at.is_some_and(|at| at != now) {
                    return;
                }
                self.wake_at = None;
                for (flight, answer) in std::mem::take(&mut self.unseen) {
                    self.ended(flight, answer, now);
                }
                self.dispatch(now);
            }
        }
    }

    fn answer(&mut self, request: Request, answer: Answer, at: Duration) {
        let number = ANSWERS.iter().position(|one| *one == answer).unwrap_or_default();
        self.at(at, Event::Answered(request, u8::try_from(number).unwrap_or_default()));
    }

    /// Passes an answer to the consumer, at once or at its next tick.
    fn see(&mut self, request: Request, answer: Answer, now: Duration) {
        let Some(flight) = request.checked_sub(self.first).and_then(|at| self.flights.get_mut(at))
        else {
            return;
        };
        if std::mem::replace(&mut flight.is_over, true) {
            return;
        }
        let flight = *flight;
        if self.tick.is_zero() {
            self.ended(flight, answer, now);
            self.dispatch(now);
        } else {
            self.unseen.push((flight, answer));
            self.wake(now);
        }
    }

    /// Wakes the consumer at its first tick at or after `at`.
    fn wake(&mut self, at: Duration) {
        let tick = self.tick.as_nanos().max(1);
        let ticks = at.as_nanos().div_ceil(tick);
        let at = Duration::from_nanos(u64::try_from(ticks * tick).unwrap_or(u64::MAX));
        if self.wake_at.is_none_or(|due| at < due) {
            self.wake_at = Some(at);
            self.at(at, Event::Woken);
        }
    }

    fn ended(&mut self, flight: Flight, answer: Answer, now: Duration) {
        let Flight { began, in_flight, .. } = flight;
        self.in_flight -= 1;
        self.record.ended(answer, now - began, now);
        let retry_after = self.server.retry_after();
        let signal = match answer {
            Answer::Done => Signal::Done,
            Answer::Failed => Signal::Failed,
            Answer::Overloaded => Signal::Overloaded { retry_after },
            Answer::Unavailable => Signal::Unavailable { retry_after },
            Answer::Broken => Signal::Broken,
            Answer::TimedOut => Signal::TimedOut,
        };
        if answer != Answer::Done && self.offered.is_some() {
            self.backlog += 1;
        }
        let chance = self.random.uniform();
        self.algorithm.ended(&Sample { began, in_flight, signal }, now, chance);
    }

    fn dispatch(&mut self, now: Duration) {
        let is_endless = self.offered.is_none();
        while is_endless || self.backlog > 0 {
            if !self.algorithm.admit(self.in_flight, now) {
                if let Some(at) = self.algorithm.wakes_at(now) {
                    self.wake(at.max(now));
                }
                return;
            }
            self.backlog = self.backlog.saturating_sub(1);
            self.send(now);
        }
    }

    fn send(&mut self, now: Duration) {
        let request = self.next();
        self.in_flight += 1;
        self.flights.push_back(Flight { began: now, in_flight: self.in_flight, is_over: false });
        self.record.sent();
        match self.server.arrive(request, now, &mut self.random) {
            Arrival::Answered(answer, after) => {
                self.answer(request, answer, now + after + self.server.network());
            }
            Arrival::Begun(service) => self.at(now + service, Event::Finished(request)),
            Arrival::Queued | Arrival::Lost => {}
        }
    }

    fn next(&self) -> Request {
        self.first + self.flights.len()
    }

    fn close_row(&mut self) {
        let now = self.record.row_ends();
        let (limit, in_flight) = (self.algorithm.concurrency(now), self.in_flight);
        let server = &self.server;
        self.record.close(|row| {
            row.limit = limit;
            row.in_flight = in_flight;
            row.capacity = server.capacity(now);
            row.base = server.base(now);
            row.base_p50 = server.base_p50(now);
        });
    }
}

/// Answers by number, because events must be ordered.
const ANSWERS: [Answer; 6] = [
    Answer::Done,
    Answer::Failed,
    Answer::Overloaded,
    Answer::Unavailable,
    Answer::Broken,
    Answer::TimedOut,
];
