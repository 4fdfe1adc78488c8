//! Replays of a resource whose events stand for each other.

use spillway_delivery::ReplayRead;

use super::*;

/// One event is delivered. Then two fail for a while, and the newer one stands for both. Meanwhile, an
/// operator asks for the first one again. Returns the world, and the position of the newest event.
fn replayed_amid_retries(at: Duration) -> (World, Position) {
    let answers: Box<Answers> = Box::new(|_, kind, at| match kind {
        COALESCED if (5 * SECOND..20 * SECOND).contains(&at) => Answer::Fails(MS),
        _ => Answer::Takes(5 * MS),
    });
    let mut world = known(config(16), answers);
    world.accept(SECOND, [(X, COALESCED)]);
    world.run(2 * SECOND);
    let first = world.last;
    world.accept(6 * SECOND, [(X, COALESCED), (X, COALESCED)]);
    world.accept(6 * SECOND + 30 * MS, [(Y, 0)]);
    world.run(at);
    world.now = at;
    let newest = PACKS.with_borrow(|packs| {
        let mut of_two = packs.iter().rev().filter(|(_, lanes)| lanes.len() == 2);
        Position::new(*of_two.next().expect("it was accepted").0, 1)
    });
    let content = Lanes(Rc::new(vec![(X, 1)]));
    let classified = classified(X, COALESCED, first.seq, 0);
    let (id, position) = (StreamId { ms: 1, seq: 1 }, Position::new(first, 0));
    world.waiting += 1;
    world.step(vec![Event::Replay(ReplayRead { id, position, classified, content })]);
    assert_eq!(world.run(120 * SECOND), 0);
    (world, newest)
}

#[test]
fn a_replay_never_takes_the_place_of_the_newest_event() {
    // While the choice is recorded, while it is sent, and while it waits for its next attempt.
    for at in [6_000, 6_001, 6_002, 6_003, 6_004, 6_005, 6_010, 6_500, 10_000] {
        let (world, newest) = replayed_amid_retries(at * MS);
        assert!(world.delivered.contains(&newest), "{at}: {:?}", world.delivered);
        assert_eq!(world.sent.get(&(X, 1)), Some(&1), "{at}: the replay");
        assert_eq!(world.took[&(X, COALESCED)].len(), 4, "{at}: all are settled");
    }
}
