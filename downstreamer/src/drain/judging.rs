//! What an ended delivery leads to: finished, tried again later, or given up.

use std::cmp::Reverse;
use std::time::{Duration, SystemTime};

use spillway_service::clock::wall_clock_ms;
use tokio::time::Instant;

use super::settling::dead_letter;
use super::{Drain, Ended, Finished, Trial};
use crate::deliver::{Delivery, Job};
use crate::index::{Place, ResourceKey, State};
use crate::judge::{Outcome, Scope, Verdict, judge, signal};
use spillway_limiter::Sample;

/// Reasons of dead letters that the backend refused: by a status that is final, and after retries.
const STATUS: &str = "status";
const REFUSED: &str = "refused";

impl Drain {
    pub(super) fn judge(&mut self, delivery: Delivery) {
        let Delivery { job, outcome, answer, took } = delivery;
        if outcome == Outcome::LeaseLost {
            self.deliver_again(&job, took);
            return;
        }
        let now = self.now();
        let verdict = judge(
            &outcome,
            &self.settings.dead_statuses,
            self.settings.backoff.longest,
            SystemTime::now(),
        );
        self.metrics.attempted(result_label(&outcome, verdict), took);
        let signal = signal(&outcome, verdict);
        let sample = Sample { began: job.began, in_flight: job.in_flight, signal };
        self.limiter.ended(&sample, now, rand::random::<f64>());
        self.schedule.ended(job.shop, took);
        let shop = self.schedule.hash(job.shop);
        match verdict {
            Verdict::Delivered => {
                self.destination.succeeded(shop, now);
                self.metrics.delivered(job.record.received_at_ms, wall_clock_ms());
                self.metrics.coalesced.inc_by(job.older.into());
                let end = Ended::Delivered(job.fingerprint);
                self.finish(job.resource, job.place, end, job.key, job.attempt);
            }
            Verdict::Dead => {
                let is_sent = outcome != Outcome::Unsendable;
                let reason = if is_sent { STATUS } else { "unsendable" };
                if is_sent {
                    self.refused(shop, now);
                }
                self.give_up(&job, &outcome, answer, reason);
            }
            Verdict::Retry { pause, scope, is_refusal } => {
                self.note_health(&job, &outcome, is_refusal);
                let (limit, reason) = if is_refusal {
                    (self.settings.retry_refused_for, REFUSED)
                } else {
                    (self.settings.retry_for, "retries_exhausted")
                };
                let (spent, wait) = self.note_failure(&job, pause);
                if scope == Scope::Shop {
                    self.schedule.pause(job.shop, now + wait);
                }
                if spent >= limit && !self.destination.is_stopped() {
                    self.give_up(&job, &outcome, answer, reason);
                } else {
                    self.retry_later(&job);
                }
            }
        }
    }

    /// Counts for the health of the backend that a delivery has to be made again.
    fn note_health(&mut self, job: &Job, outcome: &Outcome, is_refusal: bool) {
        let now = self.now();
        if *outcome == Outcome::Unconnected {
            self.destination.unconnected();
        }
        if is_refusal {
            self.refused(self.schedule.hash(job.shop), now);
        } else if outcome.is_narrow_pause() {
            self.destination.on_narrow_pause(now);
        } else {
            self.destination.failed(job.resource, job.attempt == 1, now);
        }
    }

    /// Puts a webhook of which nothing was sent back to where it was: that was no attempt.
    fn deliver_again(&mut self, job: &Job, took: Duration) {
        self.limiter.unused();
        self.schedule.ended(job.shop, took);
        self.release(job.resource);
    }

    fn refused(&mut self, shop: u64, now: Duration) {
        if self.destination.refused(shop, now) {
            tracing::error!(
                "the backend refuses most of what it gets, of every shop: nothing is given up, and \
                 one delivery every 10 s finds out when it is well again"
            );
        }
    }

    /// Time that a webhook has spent on retries.
    pub(super) fn spent(&self, trial: &Trial) -> Duration {
        let active = self.destination.active(self.now());
        trial.spent_before + active.saturating_sub(trial.since)
    }

    /// Counts a failed attempt; says how much of its time for retries the webhook has spent, and how
    /// long it waits now.
    fn note_failure(&mut self, job: &Job, pause: Duration) -> (Duration, Duration) {
        let tried = self.parked.get(&job.head.pack).copied().unwrap_or_default();
        let wait = self.settings.backoff.wait(job.attempt, rand::random::<f64>()).max(pause);
        let due = Instant::now() + wait;
        let trial = self.trials.entry(job.head).or_insert(Trial {
            resource: job.resource,
            attempts: 0,
            spent_before: tried.spent,
            since: job.began_active,
            due,
        });
        trial.attempts = job.attempt;
        trial.due = due;
        let trial = *trial;
        (self.spent(&trial), wait)
    }

    fn retry_later(&mut self, job: &Job) {
        let Some(trial) = self.trials.get(&job.head).copied() else { return };
        self.index.set_state(job.resource, State::Delayed);
        self.due.push(Reverse((trial.due, job.resource)));
        if self.parked.contains_key(&job.head.pack) {
            let spent = self.spent(&trial);
            self.tries.insert(job.head.pack, (trial.attempts, spent));
        }
    }

    /// Dead-letters a webhook, or keeps it in retry: where there is no room for dead letters, or the
    /// refusals may be a bad deploy's.
    fn give_up(&mut self, job: &Job, outcome: &Outcome, answer: Vec<u8>, reason: &'static str) {
        let shop = self.schedule.hash(job.shop);
        let is_refusal = matches!(reason, STATUS | REFUSED);
        if self.destination.is_refusing() || (is_refusal && !self.destination.may_give_up(shop)) {
            self.note_failure(job, Duration::ZERO);
            self.retry_later(job);
            return;
        }
        let dead = dead_letter(job, outcome, answer, reason);
        if !self.tenure.has_room_for_dead(dead.size_bytes(), self.settings.dead_bytes_max) {
            if !std::mem::replace(&mut self.is_dead_room_short, true) {
                tracing::warn!(
                    "no room for dead letters (DEAD_MAX, or redis is full): what would be one \
                     stays in retry"
                );
            }
            self.note_failure(job, Duration::ZERO);
            self.retry_later(job);
            return;
        }
        self.is_dead_room_short = false;
        if is_refusal {
            self.destination.mark_given_up(shop);
        }
        self.metrics.dead(reason);
        tracing::warn!(
            webhook = %job.webhook, shop = dead.labels[0], topic = dead.labels[1],
            resource = dead.labels[2], reason, status = dead.status, attempts = dead.attempts,
            "dead letter"
        );
        let end = Ended::Dead(Box::new(dead));
        self.finish(job.resource, job.place, end, job.key, job.attempt);
    }

    /// What was delivered of a resource, at `place`, is done with; `key` is what it is found by in the
    /// history.
    pub(super) fn finish(
        &mut self,
        resource: ResourceKey,
        place: Place,
        end: Ended,
        key: u64,
        attempts: u32,
    ) {
        self.tries.remove(&place.pack);
        self.finished.push(Finished { resource, end, key, attempts });
    }
}

fn result_label(outcome: &Outcome, verdict: Verdict) -> &'static str {
    match (verdict, outcome) {
        (Verdict::Delivered, _) => "delivered",
        (Verdict::Dead, _) => "dead",
        (Verdict::Retry { .. }, Outcome::TimedOut) => "timeout",
        (Verdict::Retry { is_refusal: true, .. }, _) => "refused",
        (Verdict::Retry { .. }, _) => "failed",
    }
}
