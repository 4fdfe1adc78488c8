//! Passes over the archive: the first one, and later ones for the shops that are left.

use std::sync::Arc;
use std::time::Duration;

use spillway_archive::chain::groups;
use spillway_archive::keys::KeyRing;
use spillway_archive::{ArchiveStore, ListedObject, StoreError};
use spillway_process::error::chain;
use spillway_queue::replay::FedWebhook;
use spillway_webhook::Position;

use super::feeder::{FeedPass, Feeder, Offer};
use super::lanes::SkippedWebhooks;
use super::plan::ReplayPlan;
use super::redacted::PendingPeople;
use super::source::{SkipReason, SourceWebhook, WebhookSource};
use super::spec::ReplaySpec;
use crate::archive::OpenArchive;

/// Time between two tries while the archive does not answer.
const RETRY_EVERY: Duration = Duration::from_secs(1);

/// Webhooks that are not fed, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct SkipCounts {
    /// Those that the consumer does not deliver, that still wait there, or that were erased.
    pub not_for_consumer: u64,
    /// Those of people who are to be forgotten.
    pub redacted: u64,
    /// Those of topics that are replayed only if they are named.
    pub kept_back: u64,
}

/// Reads the archive, pass by pass.
pub(super) struct PassReader {
    store: Arc<ArchiveStore>,
    keys: Arc<KeyRing>,
    spec: ReplaySpec,
    plan: ReplayPlan,
    skips: SkippedWebhooks,
    source: WebhookSource,
    /// Webhook that is offered next.
    next: Option<SourceWebhook>,
    is_over: bool,
    read_before: u64,
    /// Packs that cannot be decoded, as far as the first pass met them.
    corrupt: u64,
    /// Webhooks that were passed over since the last step.
    skipped: SkipCounts,
}

impl SkipCounts {
    /// All of them.
    pub(super) fn sum(&self) -> u64 {
        self.not_for_consumer + self.redacted + self.kept_back
    }

    /// Adds others.
    pub(super) fn add(&mut self, other: Self) {
        self.not_for_consumer += other.not_for_consumer;
        self.redacted += other.redacted;
        self.kept_back += other.kept_back;
    }

    fn count(&mut self, reason: SkipReason) {
        match reason {
            SkipReason::NotMeant => {}
            SkipReason::NotForConsumer => self.not_for_consumer += 1,
            SkipReason::Redacted => self.redacted += 1,
            SkipReason::KeptBack => self.kept_back += 1,
        }
    }
}

impl PassReader {
    /// Begins the first pass after a position.
    pub(super) fn new(
        archive: OpenArchive,
        spec: ReplaySpec,
        plan: ReplayPlan,
        skips: SkippedWebhooks,
        after: Position,
    ) -> Self {
        let store = Arc::new(archive.store);
        let keys = archive.keys;
        // All of its entry is read again, and passed by.
        let source = WebhookSource::new(&store, &keys, plan.objects.clone(), &spec, after);
        Self {
            store,
            keys,
            spec,
            plan,
            skips,
            source,
            next: None,
            is_over: false,
            read_before: 0,
            corrupt: 0,
            skipped: SkipCounts::default(),
        }
    }

    /// Description of the replay.
    pub(super) fn spec(&self) -> &ReplaySpec {
        &self.spec
    }

    /// True if everything of the pass was offered.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Objects that may hold something, and objects that were read.
    pub(super) fn objects(&self) -> (u64, u64) {
        let needed = self.plan.objects.len() as u64;
        (needed, self.read_before + self.source.objects_read())
    }

    /// Packs that cannot be decoded.
    pub(super) fn corrupt(&self) -> u64 {
        self.corrupt.max(self.source.corrupt())
    }

    /// Returns the number of webhooks that were passed over since the last call.
    pub(super) fn take_skipped(&mut self) -> SkipCounts {
        std::mem::take(&mut self.skipped)
    }

    /// Begins the first pass again after a position, with what the archive holds now. Nothing that was read stays.
    pub(super) async fn begin_again(
        &mut self,
        after: Position,
        people: PendingPeople,
    ) -> Result<(), StoreError> {
        let Self { store, keys, spec, .. } = &*self;
        let plan = patiently(async || ReplayPlan::new(store, keys, spec).await).await?;
        plan.tell_gaps(&self.plan, after.entry());
        self.plan = plan;
        self.skips.people = people;
        self.skipped = SkipCounts::default();
        self.begin_at(self.plan.objects.clone(), after);
        Ok(())
    }

    fn begin_at(&mut self, objects: Vec<ListedObject>, from: Position) {
        self.read_before += self.source.objects_read();
        self.corrupt = self.corrupt();
        self.source = WebhookSource::new(&self.store, &self.keys, objects, &self.spec, from);
        self.next = None;
        self.is_over = false;
    }

    /// Begins a pass at a position. A later one reads only objects that may hold webhooks of shops that are left.
    pub(super) async fn begin(
        &mut self,
        from: Position,
        feeder: &Feeder<FedWebhook>,
    ) -> Result<(), StoreError> {
        let mut objects = self.plan.objects.clone();
        objects.retain(|object| object.name.last >= from.entry());
        if feeder.pass() == FeedPass::Again {
            objects = self.with_shops_left(objects, feeder).await?;
        }
        self.begin_at(objects, from);
        Ok(())
    }

    /// Offers the next webhook of the pass.
    pub(super) async fn offer(
        &mut self,
        feeder: &mut Feeder<FedWebhook>,
        now: Duration,
    ) -> Result<Offer, StoreError> {
        if self.next.is_none() {
            if !self.source.has_next() && !self.go_on().await? {
                self.is_over = true;
                return Ok(Offer::EndPass);
            }
            self.next = self.source.next(&self.spec, &self.skips);
        }
        let Some(webhook) = self.next.take() else { return Ok(Offer::Taken) };
        if let Some(reason) = webhook.skip {
            if feeder.pass_by(webhook.position) {
                self.skipped.count(reason);
            }
            return Ok(Offer::Taken);
        }
        let source = &mut self.source;
        let payload = || FedWebhook {
            pack: source.single_out(&webhook),
            webhook: webhook.id,
            shop: webhook.shop.clone(),
        };
        let offer = feeder.offer(&webhook.shop, webhook.position, webhook.bytes, now, payload);
        if offer != Offer::Taken {
            self.next = Some(webhook);
        }
        Ok(offer)
    }

    async fn with_shops_left(
        &self,
        objects: Vec<ListedObject>,
        feeder: &Feeder<FedWebhook>,
    ) -> Result<Vec<ListedObject>, StoreError> {
        let mut found = Vec::new();
        // Objects that overlap are read together: one may be the other with erased webhooks.
        for group in groups(objects) {
            let mut is_meant = false;
            for object in &group {
                let tail = patiently(async || self.store.tail(object, &self.keys).await).await?;
                is_meant |= tail.index.shops.may_hold(|label| feeder.is_left(label));
            }
            if is_meant {
                found.extend(group);
            }
        }
        Ok(found)
    }

    /// Goes to the next pack.
    async fn go_on(&mut self) -> Result<bool, StoreError> {
        let source = &mut self.source;
        patiently(async || source.go_on().await).await
    }
}

/// Asks the archive until it answers.
async fn patiently<T>(
    mut ask: impl AsyncFnMut() -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let mut is_away = false;
    loop {
        match ask().await {
            Err(error @ StoreError::Unavailable(_)) => {
                if !is_away {
                    eprintln!("spillway: {}: waiting for it", chain(&error));
                }
                is_away = true;
                tokio::time::sleep(RETRY_EVERY).await;
            }
            answer => return answer,
        }
    }
}
