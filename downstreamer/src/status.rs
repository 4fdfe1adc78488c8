//! Texts about the core's state, for `/readyz` and the log.

use spillway_delivery::{Blocked, BlockedLane, Counts, Status};

use crate::settling::Translator;

/// `/readyz` while the backend refuses most of what it gets.
const REFUSES: &str =
    "destination_refuses: the backend refuses most of what it gets, of every shop";
/// `/readyz` while nothing more is read and nothing is under way.
const FULL: &str =
    "index_full: what waits fills INDEX_MEMORY, and nothing after it is read; raise INDEX_MEMORY";
/// Blocked lanes that are named.
const NAMED_MAX: usize = 3;

/// Why nothing gets out, and which lanes wait while others flow.
pub fn explain(status: &Status, names: &Translator) -> (Option<String>, Option<String>) {
    let trouble = if status.is_refusing {
        Some(REFUSES.to_owned())
    } else if status.is_index_full && status.in_flight == 0 && !status.is_paused {
        Some(FULL.to_owned())
    } else {
        None
    };
    if status.blocked.is_empty() {
        return (trouble, None);
    }
    let mut note = vec![format!("{} lanes wait", status.blocked_lanes)];
    note.extend(status.blocked.iter().take(NAMED_MAX).map(|lane| describe(lane, names)));
    (trouble, Some(note.join("; ")))
}

fn describe(lane: &BlockedLane, names: &Translator) -> String {
    let name = match names.name(lane.lane) {
        Some(name) if name.kind.is_empty() => name.shop.clone(),
        Some(name) => format!("{} {}", name.shop, name.kind),
        None => format!("lane {:016x}", lane.lane),
    };
    let waiting = lane.stored.max(u64::from(lane.indexed));
    format!("{name}: {} ({waiting} webhooks)", reason(lane.reason))
}

/// Text of a reason.
pub fn reason(blocked: Blocked) -> &'static str {
    match blocked {
        Blocked::NotLeading => "not leading",
        Blocked::AllPaused => "everything is paused",
        Blocked::Unsettled => "waits for settlements",
        Blocked::BackendDown => "the backend is down",
        Blocked::BackendRefuses => "the backend refuses everything",
        Blocked::ShopPaused => "the shop is paused",
        Blocked::ShopRate => "the shop is over its rate, or the backend asked for a pause",
        Blocked::ShopConcurrency => "the shop has as much under way as it may",
        Blocked::LaneBreaker => "circuit breaker open: its webhooks fail",
        Blocked::LaneSuspect => "its last attempt timed out",
        Blocked::LaneSlow => "an attempt takes much longer than usual",
        Blocked::SlowSlots => "slow lanes hold their part of the slots",
        Blocked::Reading => "being read",
        Blocked::Limit => "as much is under way as the backend can bear",
    }
}

/// Logs what changed since `before`.
pub fn log(before: &Counts, now: &Counts) {
    if now.refusals_opened > before.refusals_opened {
        tracing::error!(
            "the backend refuses most of what it gets, of every shop: nothing is given up, and one \
             delivery every 10 s finds out when it is well again"
        );
    }
    if now.breakers_opened > before.breakers_opened {
        tracing::warn!(
            lanes = now.breakers_opened - before.breakers_opened,
            "circuit breaker opened: sixteen webhooks in a row of one shop and kind failed; one \
             attempt at a time probes, all others flow"
        );
    }
    if now.lost > before.lost {
        tracing::error!(
            webhooks = now.lost - before.lost,
            "webhooks are lost: redis does not hold their chunk any more, or it can't be decoded; \
             reconcile with Shopify"
        );
    }
    if now.kept_for_want_of_room > 0 && before.kept_for_want_of_room == 0 {
        tracing::warn!(
            "no room for dead letters (DEAD_MAX, or redis is full): what would be one stays in retry"
        );
    }
}
