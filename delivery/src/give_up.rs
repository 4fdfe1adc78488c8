//! Giving webhooks up, as dead letters if there is room for them.

use std::time::Duration;

use spillway_webhook::fingerprint::Fingerprint;

use crate::attempts::Attempt;
use crate::core::Core;
use crate::index::ResourceKey;
use crate::ledger::{Ended, Finished};
use crate::settlement::GivenUp;
use crate::sorted::Content;

/// Failure of one attempt.
pub(crate) struct AttemptFailure<E> {
    pub attempt: Attempt,
    /// Wait that the backend requested.
    pub pause: Duration,
    pub reason: &'static str,
    /// True if the webhook was refused rather than failed.
    pub is_refusal: bool,
    pub evidence: E,
}

impl<C: Content> Core<C> {
    /// Makes a dead letter of a webhook. The webhook stays in retry instead while the backend
    /// refuses everything, if there is no room for dead letters, or if nothing at all succeeds.
    pub(crate) fn give_up(&mut self, failure: AttemptFailure<C::Evidence>) {
        let AttemptFailure { attempt, pause, reason, is_refusal, evidence, .. } = failure;
        let letter = self.dead_letter(&attempt, reason, evidence);
        let Some(letter) = letter.filter(|_| !self.backend.is_refusing()) else {
            self.retry(&attempt, attempt.number, pause, None);
            return;
        };
        let bytes = letter.content.dead_bytes(letter.record_index, &letter.evidence);
        let shop = self.queue.shops.get(attempt.shop).map_or(0, |shop| shop.hash);
        let has_credit = !is_refusal || self.backend.take_credit(shop);
        if !self.has_dead_room(bytes) || !has_credit {
            self.retry(&attempt, attempt.number, pause, None);
            return;
        }
        if let Some(lane) = self.queue.lanes.get_mut(attempt.lane) {
            lane.breaker.gave_up(self.session.now.at);
            if let (Some(suspect), Some(at)) = (&mut lane.flow.suspect, lane.breaker.probe_at()) {
                suspect.until = suspect.until.min(at);
            }
        }
        if !is_refusal {
            self.may_expire_from_now_on(attempt.lane);
        }
        self.end_as_dead_letter(attempt.resource, letter, bytes, attempt.sent.fingerprint);
    }

    /// True if there is room for a dead letter of `bytes`.
    pub(crate) fn has_dead_room(&mut self, bytes: u64) -> bool {
        let has_room = bytes <= self.session.dead_room;
        self.counts.kept_for_want_of_room += u64::from(!has_room);
        has_room
    }

    /// Ends a head as a dead letter of `bytes`.
    pub(crate) fn end_as_dead_letter(
        &mut self,
        resource: ResourceKey,
        letter: GivenUp<C>,
        bytes: u64,
        fingerprint: Option<Fingerprint>,
    ) {
        self.session.dead_room -= bytes;
        self.ledger.dying_bytes += bytes;
        self.counts.dead(letter.reason);
        let attempts = letter.attempts;
        let end = Ended::Dead(Box::new(letter), bytes);
        self.finish(Finished { resource, end, fingerprint, attempts });
    }

    /// Dead letter of the webhook that an attempt sent; `None` if its bytes are not in memory.
    fn dead_letter(
        &mut self,
        attempt: &Attempt,
        reason: &'static str,
        evidence: C::Evidence,
    ) -> Option<GivenUp<C>> {
        let (content, record_index) = self.ledger.sent.remove(&attempt.resource)?;
        let position = attempt.position;
        let attempts = attempt.number;
        Some(GivenUp { position, content, record_index, reason, attempts, evidence })
    }
}
