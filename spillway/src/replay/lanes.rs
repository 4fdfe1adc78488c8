//! Webhooks of the range that the consumer still has to deliver, although its cursor is after them: those in lanes.

use std::collections::HashSet;
use std::ops::ControlFlow;

use spillway_queue::controls::Filter;
use spillway_webhook::{ConsumerFilter, StreamId};

use super::delivered::DeliveredWebhooks;
use super::redacted::PendingPeople;
use super::spec::ReplaySpec;
use crate::failure::Failure;
use crate::place::CellArgs;
use crate::walk::{Look, Waiting};

/// Webhooks in lanes that are kept in mind: 50 MB.
const WAITING_MAX: usize = 1_000_000;

/// Webhooks that are not fed.
#[derive(Debug, Default)]
pub(super) struct SkippedWebhooks {
    /// Filter of the consumer: what it does not match is not for this consumer.
    pub filter: ConsumerFilter,
    /// Entry and index of what still waits.
    pub waiting: HashSet<(StreamId, u32)>,
    /// People who are to be forgotten.
    pub people: PendingPeople,
}

impl DeliveredWebhooks {
    /// Finds what is not to be fed.
    pub(super) async fn skips(
        self,
        place: &CellArgs,
        spec: &ReplaySpec,
    ) -> Result<SkippedWebhooks, Failure> {
        let mut skips = SkippedWebhooks { filter: self.filter, ..SkippedWebhooks::default() };
        if spec.cell != self.cell {
            return Ok(skips);
        }
        let mut walk = Waiting::for_consumer(place, &self.consumer).await?;
        let only_shop = Filter { shop: spec.filter.shop.clone(), ..Filter::default() };
        let mut rows = walk.lanes(&only_shop).await?;
        rows.retain(|row| row.last.entry() > spec.after && row.first.entry() <= spec.through);
        if rows.is_empty() {
            return Ok(skips);
        }
        let (after, through) = (spec.after, spec.through);
        let look = move |look: &Look<'_>| {
            let in_lanes = look.webhooks().filter(|met| {
                let is_in_range = met.id.entry > after && met.id.entry <= through;
                is_in_range && met.aside.is_some_and(|aside| aside.replay.is_none())
            });
            in_lanes.map(|met| (met.id.entry, met.id.index)).collect::<Vec<_>>()
        };
        let waiting = &mut skips.waiting;
        walk.aside(&rows, look, |found| {
            waiting.extend(found);
            if waiting.len() > WAITING_MAX {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })
        .await?;
        if skips.waiting.len() > WAITING_MAX {
            let told = "more than a million webhooks of this range still wait for their first delivery: \
                        see `spillway top`, and replay a shorter range or one --shop";
            return Err(Failure::Failed(told.to_owned()));
        }
        Ok(skips)
    }
}
