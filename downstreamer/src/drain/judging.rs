//! What an ended delivery leads to: finished, tried again later, or given up.

use std::cmp::Reverse;
use std::time::{Duration, SystemTime};

use spillway_queue::settle::Dead;
use spillway_service::clock::wall_clock_ms;
use tokio::time::Instant;

use super::settling::dead_letter;
use super::{Drain, Finished, Trial};
use crate::deliver::{Delivery, Job};
use crate::index::{Place, ResourceKey, State};
use crate::judge::{Outcome, Verdict, judge};

impl Drain {
    pub(super) fn judge(&mut self, delivery: Delivery) {
        let Delivery { job, outcome, answer, took } = delivery;
        let now = self.now();
        let verdict = judge(
            &outcome,
            &self.settings.dead_statuses,
            self.settings.backoff.longest,
            SystemTime::now(),
        );
        self.metrics.attempted(result_label(&outcome, verdict), took);
        match verdict {
            Verdict::Delivered => {
                self.destination.succeeded(now);
                let received_at_ms = job.pack.record(job.record_index).received_at_ms;
                self.metrics.delivered(received_at_ms, wall_clock_ms());
                self.finish(job.resource, job.place, None);
            }
            Verdict::Dead => {
                let reason = if outcome == Outcome::Unsendable { "unsendable" } else { "status" };
                // The backend does its work: it took a look and said no.
                self.destination.succeeded(now);
                self.give_up(&job, &outcome, answer, reason);
            }
            Verdict::Retry { pause, pauses_all, is_refusal } => {
                if outcome == Outcome::Unconnected {
                    self.destination.unconnected();
                }
                self.destination.failed(job.resource, job.attempt == 1, now);
                if pauses_all {
                    self.destination.pause(pause, now);
                }
                let (limit, reason) = if is_refusal {
                    (self.settings.retry_refused_for, "refused")
                } else {
                    (self.settings.retry_for, "retries_exhausted")
                };
                let spent = self.note_failure(&job, pause);
                if spent >= limit && !self.destination.is_down() {
                    self.give_up(&job, &outcome, answer, reason);
                } else {
                    self.retry_later(&job);
                }
            }
        }
    }

    /// Time that a webhook has spent on retries.
    pub(super) fn spent(&self, trial: &Trial) -> Duration {
        let active = self.destination.active(self.now());
        trial.spent_before + active.saturating_sub(trial.since)
    }

    /// Counts a failed attempt; says how much of its time for retries the webhook has spent.
    fn note_failure(&mut self, job: &Job, pause: Duration) -> Duration {
        let tried = self.parked.get(&job.place.pack).copied().unwrap_or_default();
        let wait = self.settings.backoff.wait(job.attempt, rand::random::<f64>()).max(pause);
        let due = Instant::now() + wait;
        let trial = self.trials.entry(job.place).or_insert(Trial {
            resource: job.resource,
            attempts: 0,
            spent_before: tried.spent,
            since: job.began_active,
            due,
        });
        trial.attempts = job.attempt;
        trial.due = due;
        let trial = *trial;
        self.spent(&trial)
    }

    fn retry_later(&mut self, job: &Job) {
        let Some(trial) = self.trials.get(&job.place).copied() else { return };
        self.index.set_state(job.resource, State::Delayed);
        self.due.push(Reverse((trial.due, job.resource)));
        if self.parked.contains_key(&job.place.pack) {
            let spent = self.spent(&trial);
            self.tries.insert(job.place.pack, (trial.attempts, spent));
        }
    }

    /// Dead-letters a webhook, or keeps it in retry where there is no room for dead letters.
    fn give_up(&mut self, job: &Job, outcome: &Outcome, answer: Vec<u8>, reason: &'static str) {
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
        self.metrics.dead(reason);
        tracing::warn!(
            webhook = %job.webhook, shop = dead.labels[0], topic = dead.labels[1],
            resource = dead.labels[2], reason, status = dead.status, attempts = dead.attempts,
            "dead letter"
        );
        self.finish(job.resource, job.place, Some(dead));
    }

    fn finish(&mut self, resource: ResourceKey, place: Place, dead: Option<Dead>) {
        self.tries.remove(&place.pack);
        self.finished.push(Finished { resource, place, dead });
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
