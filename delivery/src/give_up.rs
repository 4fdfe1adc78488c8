//! Giving webhooks up: as dead letters, where there is room for them.

use std::time::Duration;

use spillway_webhook::fingerprint::Fingerprint;

use crate::attempts::Attempt;
use crate::core::Core;
use crate::index::ResourceKey;
use crate::ledger::{Ended, Finished};
use crate::settlement::DeadLetter;
use crate::sorted::Content;

/// A failure of one attempt.
pub(crate) struct Failure<E> {
    pub attempt: Attempt,
    /// Wait that the backend asked for.
    pub pause: Duration,
    pub reason: &'static str,
    /// Refused, rather than failed.
    pub is_refusal: bool,
    pub evidence: E,
}

impl<C: Content> Core<C> {
    /// Makes a dead letter of a webhook, or keeps it in retry: while the backend refuses everything,
    /// where there is no room for dead letters, and where nothing at all succeeds.
    pub(crate) fn give_up(&mut self, failure: Failure<C::Evidence>) {
        let Failure { attempt, pause, reason, is_refusal, evidence, .. } = failure;
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
        self.bury(attempt.resource, letter, bytes, attempt.sent.fingerprint);
    }

    /// True if a dead letter of so many bytes has room.
    pub(crate) fn has_dead_room(&mut self, bytes: u64) -> bool {
        let has_room = bytes <= self.session.dead_room;
        self.counts.kept_for_want_of_room += u64::from(!has_room);
        has_room
    }

    /// A head ends as a dead letter of so many bytes.
    pub(crate) fn bury(
        &mut self,
        resource: ResourceKey,
        letter: DeadLetter<C>,
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

    /// The dead letter of what an attempt sent; `None` where its bytes are not at hand.
    fn dead_letter(
        &mut self,
        attempt: &Attempt,
        reason: &'static str,
        evidence: C::Evidence,
    ) -> Option<DeadLetter<C>> {
        let (content, record_index) = self.ledger.sent.remove(&attempt.resource)?;
        let (position, attempts) = (attempt.position, attempt.number);
        Some(DeadLetter { position, content, record_index, reason, attempts, evidence })
    }
}
