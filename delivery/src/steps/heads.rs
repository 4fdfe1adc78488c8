//! Heads that change although nothing of their resource ended.

use spillway_webhook::position::Position;

use crate::classified::Content;
use crate::state::Core;
use crate::state::index::{LaneKey, ResourceKey};
use crate::state::resource::{HeadState, Step};

/// Forgets which event was chosen to stand for a head that is not at work. Returns true if a replay that
/// arrived during an attempt is the head now. The resource is then placed by it.
pub(crate) fn undo_choice<C: Content>(core: &mut Core<C>, resource: ResourceKey) -> bool {
    let index = &mut core.queue.index;
    let before = index.head(resource).zip(index.lane(resource));
    let has_new_head = index.undo_choice(resource);
    if has_new_head && let Some(before) = before {
        leave(core, resource, before);
        core.queue.place_by_head(resource, core.session.now.at);
    }
    has_new_head
}

/// Forgets what is kept for a head that is not at work, of this position and lane, because another
/// webhook is the head.
pub(crate) fn leave<C: Content>(
    core: &mut Core<C>,
    resource: ResourceKey,
    (head, lane): (Position, LaneKey),
) {
    core.reading.forget(resource);
    let state = core.queue.index.state(resource);
    if state == Some(HeadState::Held) {
        core.queue.unhold(lane, head);
    }
    if state == Some(HeadState::Paused)
        && let Some(lane) = core.queue.lanes.get_mut(lane)
    {
        lane.flow.paused = lane.flow.paused.saturating_sub(1);
        core.queue.step(resource, Step::Released);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Loaded;
    use crate::state::resource::Step;
    use crate::steps::sample::{self, at};

    #[test]
    fn a_paused_head_counts_in_its_own_lane_alone() {
        let mut core = sample::core(1_000_000, Loaded::default());
        let [one, other] = sample::lanes(&mut core);
        let resource = sample::add(&mut core, one, 7, at(20), false);
        core.queue.step(resource, Step::Blocked(HeadState::Paused));
        core.queue.lanes.get_mut(one).expect("lane").flow.paused = 1;
        core.queue.lanes.get_mut(other).expect("lane").flow.paused = 1;
        sample::add(&mut core, other, 7, at(10), true);
        assert_eq!(core.queue.index.state(resource), Some(HeadState::Ready));
        let paused = [one, other].map(|lane| core.queue.lanes.get(lane).expect("lane").flow.paused);
        assert_eq!(paused, [0, 1]);
    }
}
