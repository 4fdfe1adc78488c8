//! Texts about the core's state, for `/readyz` and the log.

use spillway_delivery::{Blocked, BlockedLane, Counts, Status};

use crate::names::Names;

/// Text for `/readyz` while the backend refuses the webhooks of most shops.
const REFUSES: &str =
    "backend_refuses: the backend refuses the webhooks of more than half of the recent shops";
/// Text for `/readyz` while the backend is down.
const DOWN: &str = "backend_down: no delivery succeeds; it is probed once a second, and the retry \
                    clock is stopped";
/// Text for `/readyz` while nothing more is read and nothing is under way.
const FULL: &str =
    "index_full: what waits fills INDEX_MEMORY, and nothing after it is read; raise INDEX_MEMORY";
/// Most blocked lanes that are named.
const NAMED_MAX: usize = 3;

/// Returns the reason for which nothing is delivered, and a note on lanes that wait while others
/// flow.
pub(crate) fn explain(status: &Status, names: &Names) -> (Option<String>, Option<String>) {
    let trouble = if status.is_refusing {
        Some(REFUSES.to_owned())
    } else if status.is_index_full && status.in_flight == 0 && !status.is_paused {
        Some(FULL.to_owned())
    } else {
        None
    };
    let mut note = Vec::new();
    if status.is_down {
        note.push(DOWN.to_owned());
    }
    match status.blocked_lanes {
        0 => {}
        1 => note.push("1 lane waits".to_owned()),
        lanes => note.push(format!("{lanes} lanes wait")),
    }
    note.extend(status.blocked.iter().take(NAMED_MAX).map(|lane| describe(lane, names)));
    (trouble, (!note.is_empty()).then(|| note.join("; ")))
}

fn describe(lane: &BlockedLane, names: &Names) -> String {
    let webhooks = match lane.stored.max(u64::from(lane.indexed)) {
        1 => "1 webhook".to_owned(),
        count => format!("{count} webhooks"),
    };
    format!("{}: {} ({webhooks})", name_of(lane, names), reason(lane.reason))
}

/// Shop and kind of a lane, as far as known.
fn name_of(lane: &BlockedLane, names: &Names) -> String {
    match (names.lane(lane.lane), names.shop(lane.shop)) {
        (Some(name), _) if name.kind.is_empty() => name.shop.clone(),
        (Some(name), _) => format!("{} {}", name.shop, name.kind),
        (None, Some(shop)) => shop.to_owned(),
        (None, None) => format!("lane {:016x}", lane.lane),
    }
}

/// Text for a reason.
pub(crate) fn reason(blocked: Blocked) -> &'static str {
    match blocked {
        Blocked::NotLeading => "starting or stopping, or the lease is not confirmed",
        Blocked::AllPaused => "everything is paused",
        Blocked::Unsettled => "waits for settlements",
        Blocked::BackendDown => "the backend is down",
        Blocked::BackendRefuses => "the backend refuses everything",
        Blocked::ShopPaused => "the shop is paused",
        Blocked::FilterPaused => "all its waiting webhooks are paused by filters",
        Blocked::Barrier => {
            "waits for earlier webhooks of its shop, or for a redaction or uninstall"
        }
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

/// Logs the changes since `before`.
pub(crate) fn log(before: &Counts, now: &Counts, status: &Status, names: &Names) {
    if now.backend.went_down > before.backend.went_down {
        tracing::warn!(
            "the backend is down: no delivery succeeds; it is probed once a second, and the retry clock \
             is stopped"
        );
    }
    if now.backend.came_back > before.backend.came_back {
        tracing::info!("the backend is back: a delivery succeeded");
    }
    if now.backend.refusals_opened > before.backend.refusals_opened {
        tracing::error!(
            "the backend refuses the webhooks of more than half of the recent shops: nothing is given \
             up, and one delivery every 10 s probes if it accepts webhooks again"
        );
    }
    if now.breakers_opened > before.breakers_opened {
        let open = status.blocked.iter().filter(|lane| lane.reason == Blocked::LaneBreaker);
        let some: Vec<String> = open.take(NAMED_MAX).map(|lane| name_of(lane, names)).collect();
        tracing::warn!(
            opened = now.breakers_opened - before.breakers_opened,
            lanes = some.join(", "),
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

#[cfg(test)]
mod tests {
    use spillway_queue::lane::KeyScheme;

    use super::*;
    use crate::classify::shop_hash;

    fn status(blocked: Vec<BlockedLane>) -> Status {
        Status {
            in_flight: 0,
            limit: 1,
            is_paused: false,
            is_refusing: false,
            is_down: false,
            is_index_full: false,
            index_bytes: 0,
            lanes: blocked.len(),
            stored: 0,
            stubs_expiring: 0,
            blocked_lanes: blocked.len(),
            blocked,
        }
    }

    fn paused(stored: u64) -> BlockedLane {
        let shop = shop_hash(b"a.myshopify.com");
        BlockedLane { lane: 7, shop, reason: Blocked::ShopPaused, indexed: 0, stored }
    }

    #[test]
    fn a_shop_that_an_operator_named_is_named_before_its_lane_has_a_row() {
        let mut names = Names::new(KeyScheme::Kind, &[]);
        let told = |names: &Names, stored| explain(&status(vec![paused(stored)]), names).1;
        let text = "1 lane waits; lane 0000000000000007: the shop is paused (1 webhook)";
        assert_eq!(told(&names, 1).as_deref(), Some(text));
        names.learn_shop("a.myshopify.com");
        let text = "1 lane waits; a.myshopify.com: the shop is paused (12 webhooks)";
        assert_eq!(told(&names, 12).as_deref(), Some(text));
    }

    #[test]
    fn a_backend_that_is_down_is_told_of_and_no_reason_for_another_instance() {
        let names = Names::new(KeyScheme::Kind, &[]);
        let down = Status { is_down: true, ..status(Vec::new()) };
        let (trouble, note) = explain(&down, &names);
        assert!(trouble.is_none());
        assert!(note.is_some_and(|note| note.starts_with("backend_down: ")));
        assert_eq!(explain(&status(Vec::new()), &names), (None, None));
    }
}
