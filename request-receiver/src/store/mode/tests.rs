//! Exhaustive tests of the store mode: every reachable state is visited.

use std::collections::{HashSet, VecDeque};

use super::*;

/// Most appends, and most writes, at once in the explored states.
const MOST: u32 = 2;

/// Events that may come in any state.
fn events(has_log: bool) -> Vec<StoreEvent> {
    let mut events = vec![
        StoreEvent::Queue { is_usable: true },
        StoreEvent::Queue { is_usable: false },
        StoreEvent::ClaimTheirs,
    ];
    if has_log {
        events.extend([
            StoreEvent::QueueShort,
            StoreEvent::ClaimOurs { is_new: false },
            StoreEvent::ClaimOurs { is_new: true },
            StoreEvent::HoldRanOut,
            StoreEvent::HoldAllowed,
            StoreEvent::ChunkRead { is_last: false },
            StoreEvent::ChunkRead { is_last: true },
            StoreEvent::ChunkFailed,
        ]);
    } else {
        events.push(StoreEvent::ClaimFree);
    }
    events
}

/// All states that one event leads to from here, with the log empty or not.
fn successors(machine: &StoreMachine) -> Vec<StoreMachine> {
    let mut next = Vec::new();
    let mut events = events(machine.has_log);
    if machine.needs_fence() {
        events.push(StoreEvent::Fenced);
    }
    if machine.appends > machine.hanging {
        events.push(StoreEvent::AppendHangs);
    }
    for is_final in [true, false] {
        if machine.appends > machine.hanging {
            events.push(StoreEvent::AppendEnded { was_hanging: false, is_final });
        }
        if machine.hanging > 0 {
            events.push(StoreEvent::AppendEnded { was_hanging: true, is_final });
        }
    }
    if machine.writes > 0 {
        events.push(StoreEvent::WriteEnded);
    }
    if machine.may_finish() {
        events.push(StoreEvent::LogEmpty);
    }
    for event in events {
        let mut one = machine.clone();
        one.on(event);
        next.push(one);
    }
    for was_hanging in [false, true] {
        let count = if was_hanging { machine.hanging } else { machine.appends - machine.hanging };
        if count > 0 {
            let mut one = machine.clone();
            one.on_refused(was_hanging);
            next.push(one);
        }
    }
    let mut one = machine.clone();
    one.route();
    next.push(one);
    next.retain(|one| one.appends <= MOST && one.writes <= MOST);
    next
}

fn explored(has_log: bool) -> HashSet<StoreMachine> {
    let mut known = HashSet::from([StoreMachine::new(has_log)]);
    let mut open = VecDeque::from([StoreMachine::new(has_log)]);
    while let Some(machine) = open.pop_front() {
        for next in successors(&machine) {
            if known.insert(next.clone()) {
                open.push_back(next);
            }
        }
    }
    known
}

#[test]
fn each_mode_is_what_it_says_in_every_state() {
    let known = explored(true);
    for mut machine in known.clone() {
        assert_eq!(machine.next(), machine.mode, "{machine:?}");
        assert_eq!(machine.is_holding(), machine.mode == StoreMode::Closing, "{machine:?}");
        assert!(!machine.may_finish() || machine.writes == 0, "{machine:?}");
        let is_theirs = machine.claim == ClaimState::Theirs;
        assert_eq!(is_theirs, machine.mode == StoreMode::StandingBack, "{machine:?}");
        let is_right = match machine.mode {
            StoreMode::Direct => {
                machine.is_usable
                    && machine.is_fenced
                    && machine.writes == 0
                    && machine.hanging == 0
            }
            StoreMode::Restoring | StoreMode::Closing => {
                machine.takes_restored
                    && (machine.is_usable || machine.mode == StoreMode::Restoring)
                    && machine.is_fenced
                    && machine.claim == ClaimState::Ours
                    && machine.appends == 0
                    && (machine.is_read || machine.mode == StoreMode::Restoring)
            }
            StoreMode::Spilling | StoreMode::StandingBack => !machine.is_read,
            StoreMode::Refusing => false,
        };
        assert!(is_right, "{machine:?}");
        let destination = match machine.mode {
            StoreMode::Direct => Some(Destination::Append),
            StoreMode::Spilling | StoreMode::Restoring => Some(Destination::Write),
            StoreMode::Closing => None,
            StoreMode::StandingBack | StoreMode::Refusing => Some(Destination::Refused),
        };
        assert_eq!(machine.route(), destination);
    }
    println!("{} states", known.len());
}

#[test]
fn a_chunk_that_failed_ends_a_hold_and_a_refused_append_is_written_unless_standing_back() {
    for machine in explored(true) {
        if machine.mode == StoreMode::Closing {
            let mut one = machine.clone();
            one.on(StoreEvent::ChunkFailed);
            assert_eq!(one.mode, StoreMode::Restoring);
        }
        if machine.appends > machine.hanging {
            let mut one = machine.clone();
            let may_write = one.on_refused(false);
            assert_eq!(may_write, machine.mode != StoreMode::StandingBack, "{machine:?}");
            assert_eq!(one.writes, machine.writes + u32::from(may_write));
        }
    }
}

#[test]
fn every_transition_of_the_table_is_reached_and_no_other() {
    use StoreMode::{Closing, Direct, Restoring, Spilling, StandingBack};
    let mut reached = HashSet::new();
    for machine in explored(true) {
        for next in successors(&machine) {
            if next.mode != machine.mode {
                reached.insert((machine.mode, next.mode));
            }
        }
    }
    let table = HashSet::from([
        (Spilling, Restoring),
        (Restoring, Closing),
        (Closing, Restoring),
        (Restoring, Direct),
        (Closing, Direct),
        (Restoring, Spilling),
        (Closing, Spilling),
        (Direct, Spilling),
        // By way of Spilling: an append is refused while the queue is usable.
        (Direct, Restoring),
        (Spilling, StandingBack),
        (Restoring, StandingBack),
        (Closing, StandingBack),
        (Direct, StandingBack),
        (StandingBack, Spilling),
    ]);
    assert_eq!(reached, table);
}

#[test]
fn direct_is_reached_from_every_state_once_all_is_well() {
    for mut machine in explored(true) {
        while machine.hanging > 0 {
            machine.on(StoreEvent::AppendEnded { was_hanging: true, is_final: true });
        }
        while machine.appends > 0 {
            machine.on(StoreEvent::AppendEnded { was_hanging: false, is_final: false });
        }
        while machine.writes > 0 {
            machine.on(StoreEvent::WriteEnded);
        }
        machine.on(StoreEvent::Queue { is_usable: true });
        machine.on(StoreEvent::ClaimOurs { is_new: false });
        if machine.needs_fence() {
            machine.on(StoreEvent::Fenced);
        }
        if machine.mode() == StoreMode::Direct {
            continue;
        }
        machine.on(StoreEvent::ChunkRead { is_last: true });
        // Writes that were under way before are read, too.
        machine.on(StoreEvent::HoldAllowed);
        assert_eq!(machine.mode(), StoreMode::Closing, "{machine:?}");
        machine.on(StoreEvent::ChunkRead { is_last: false });
        assert_eq!(machine.mode(), StoreMode::Closing, "{machine:?}");
        assert!(machine.may_finish(), "{machine:?}");
        machine.on(StoreEvent::LogEmpty);
        assert_eq!(machine.mode(), StoreMode::Direct, "{machine:?}");
    }
}

#[test]
fn without_a_log_batches_are_appended_or_refused() {
    use StoreMode::{Direct, Refusing, StandingBack};
    let mut reached = HashSet::new();
    for machine in explored(false) {
        assert_eq!((machine.writes, machine.needs_fence()), (0, false), "{machine:?}");
        assert!(!machine.is_holding() && !machine.may_finish(), "{machine:?}");
        let expected = match (machine.claim, machine.is_usable) {
            (ClaimState::Theirs, _) => StandingBack,
            (ClaimState::Unknown | ClaimState::Ours, true) => Direct,
            (ClaimState::Unknown | ClaimState::Ours, false) => Refusing,
        };
        assert_eq!(machine.mode, expected, "{machine:?}");
        let destination =
            if expected == Direct { Destination::Append } else { Destination::Refused };
        assert_eq!(machine.clone().route(), Some(destination));
        if machine.appends > machine.hanging {
            assert!(!machine.clone().on_refused(false), "there is nowhere to write to");
        }
        for next in successors(&machine) {
            if next.mode != machine.mode {
                reached.insert((machine.mode, next.mode));
            }
        }
    }
    let all = [Direct, Refusing, StandingBack];
    let pairs = all.into_iter().flat_map(|from| all.map(|to| (from, to)));
    assert_eq!(reached, pairs.filter(|(from, to)| from != to).collect());
}
