//! Order within a resource, runs that one event speaks for, and how far the cursor goes.

use super::*;

fn id(seq: u64) -> StreamId {
    StreamId { ms: 1, seq }
}

fn plain(pack: PackKey, index: u32) -> Waiting {
    let place = Place { pack, index };
    Waiting { place, class: Class::Rest, coalesces: 0, fingerprint: None }
}

fn indices(index: &Index, resource: ResourceKey) -> Vec<(u64, u32)> {
    index
        .from(index.resources[&resource].head)
        .map(|(_, place)| (index.pack(place.pack).unwrap().origin.seq, place.index))
        .collect()
}

#[test]
fn a_resource_is_in_accepted_order_and_ready_one_at_a_time() {
    let mut index = Index::new(1 << 20, false);
    let pack = index.add_pack(OpenPack::main(id(1), 3, None));
    assert!(index.add(7, 0, &plain(pack, 0)));
    assert!(!index.add(7, 0, &plain(pack, 2)));
    assert!(index.add(8, 0, &plain(pack, 1)));
    assert_eq!(indices(&index, 7), [(1, 0), (1, 2)]);
    index.set_state(7, State::Busy);
    assert!(index.pop(7));
    assert_eq!(index.state(7), Some(State::Ready));
    assert!(!index.pop(7));
    assert_eq!(index.state(7), None);
    assert_eq!(index.bytes, Source::Main.pack_bytes() + WEBHOOK_BYTES + RESOURCE_BYTES);
}

#[test]
fn a_replayed_webhook_goes_where_it_was_accepted() {
    let mut index = Index::new(1 << 20, false);
    let main = index.add_pack(OpenPack::main(id(5), 2, None));
    index.add(7, 0, &plain(main, 0));
    index.add(7, 0, &plain(main, 1));
    let old = index.add_pack(OpenPack::parked(id(90), id(3), false));
    assert!(!index.add(7, 0, &plain(old, 4)));
    assert_eq!(indices(&index, 7), [(3, 4), (5, 0), (5, 1)]);
    index.set_state(7, State::Busy);
    let older = index.add_pack(OpenPack::parked(id(91), id(2), false));
    index.add(7, 0, &plain(older, 0));
    assert_eq!(indices(&index, 7), [(3, 4), (2, 0), (5, 0), (5, 1)]);
}

#[test]
fn the_cursor_passes_whole_packs_in_order() {
    let mut index = Index::new(1 << 20, false);
    let first = index.add_pack(OpenPack::main(id(1), 2, None));
    let second = index.add_pack(OpenPack::main(id(2), 1, None));
    index.mark_settled(Place { pack: second, index: 0 });
    assert_eq!(index.advance().0, Advance::default());
    assert_eq!(index.settled_open(), 1);
    index.mark_settled(Place { pack: first, index: 1 });
    index.mark_settled(Place { pack: first, index: 0 });
    let (advance, passed) = index.advance();
    assert_eq!(advance, Advance { cursor: Some(id(2)), entries: 2, webhooks: 3 });
    assert_eq!(passed.len(), 2);
    assert_eq!(index.settled_open(), 0);
}

#[test]
fn bits_that_redis_holds_are_settled_already() {
    let pack = OpenPack::main(id(1), 10, Some(&vec![0b0000_0101, 0b10]));
    assert_eq!(pack.left, 7);
    assert!(pack.is_settled(0) && pack.is_settled(2) && pack.is_settled(9));
    assert!(!pack.is_settled(1));
}

#[test]
fn a_parked_webhook_keeps_its_place() {
    let mut index = Index::new(1 << 20, false);
    let main = index.add_pack(OpenPack::main(id(5), 2, None));
    index.add(7, 0, &plain(main, 0));
    index.add(7, 0, &plain(main, 1));
    let parked = index.add_pack(OpenPack::parked(id(90), id(5), false));
    let first = index.in_main(7).next().unwrap().0;
    assert_eq!(index.moved(7, first, parked), Place { pack: parked, index: 0 });
    assert_eq!(indices(&index, 7), [(5, 0), (5, 1)]);
    assert_eq!(index.head(7), Some(Place { pack: parked, index: 0 }));
    assert_eq!(index.in_main(7).count(), 1);
}

fn coalescing(index: &mut Index, kinds: &[u8]) -> PackKey {
    let pack = index.add_pack(OpenPack::main(id(1), kinds.len() as u32, None));
    for (at, coalesces) in (0..).zip(kinds) {
        index.add(7, 0, &Waiting { coalesces: *coalesces, ..plain(pack, at) });
    }
    pack
}

#[test]
fn the_newest_of_a_run_speaks_for_it() {
    let mut index = Index::new(1 << 20, false);
    let pack = coalescing(&mut index, &[1, 1, 1, 2, 2, 0, 1]);
    let mut runs = Vec::new();
    while let Some((place, older)) = index.choose_lead(7, |_, _| Lead::Yes) {
        runs.push((place.index, older));
        assert_eq!(index.led(7).count(), older as usize + 1);
        index.pop(7);
    }
    assert_eq!(runs, [(2, 2), (4, 1), (5, 0), (6, 0)]);
    assert_eq!(index.nodes[0].place.pack, pack);
}

#[test]
fn what_speaks_for_others_stays_decided_and_a_replay_comes_behind() {
    let mut index = Index::new(1 << 20, false);
    let pack = coalescing(&mut index, &[1, 1, 1]);
    let upto = |last: u32| {
        move |position: Position, _: Option<Fingerprint>| {
            if position.1 <= last { Lead::Yes } else { Lead::End }
        }
    };
    assert_eq!(index.choose_lead(7, upto(1)), Some((Place { pack, index: 1 }, 1)));
    assert_eq!(index.choose_lead(7, upto(2)), Some((Place { pack, index: 1 }, 1)));
    let replayed = index.add_pack(OpenPack::parked(id(90), StreamId::ZERO, true));
    index.add(7, 0, &plain(replayed, 0));
    assert_eq!(indices(&index, 7), [(1, 0), (1, 1), (0, 0), (1, 2)]);
    assert!(index.pop(7));
    assert_eq!(indices(&index, 7), [(0, 0), (1, 2)]);
}

#[test]
fn a_late_copy_is_not_the_newest() {
    let mut index = Index::new(1 << 20, true);
    let pack = index.add_pack(OpenPack::main(id(1), 4, None));
    for (at, fingerprint) in (0..).zip([2, 3, 2, 3]) {
        let fingerprint = Some(fingerprint);
        index.add(7, 0, &Waiting { coalesces: 1, fingerprint, ..plain(pack, at) });
    }
    let chosen = index.choose_lead(7, |_, _| Lead::Yes);
    assert_eq!(chosen, Some((Place { pack, index: 1 }, 1)));
}

#[test]
fn a_replay_goes_before_a_head_that_waits_for_its_retry() {
    let mut index = Index::new(1 << 20, false);
    let main = index.add_pack(OpenPack::main(id(5), 1, None));
    index.add(7, 0, &plain(main, 0));
    assert_eq!(index.choose_lead(7, |_, _| Lead::Yes), Some((Place { pack: main, index: 0 }, 0)));
    index.set_state(7, State::Delayed);
    let old = index.add_pack(OpenPack::parked(id(90), id(3), false));
    index.add(7, 0, &plain(old, 4));
    assert_eq!(index.lead(7), Some(Place { pack: old, index: 4 }));
    assert_eq!(indices(&index, 7), [(3, 4), (5, 0)]);
}

#[test]
fn a_skipped_one_is_spoken_for_by_one_behind_it() {
    let mut index = Index::new(1 << 20, false);
    let pack = coalescing(&mut index, &[1, 1, 1, 1]);
    let chosen = index.choose_lead(7, |position, _| match position.1 {
        2 => Lead::Yes,
        _ => Lead::Skip,
    });
    assert_eq!(chosen, Some((Place { pack, index: 2 }, 2)));
}

#[test]
fn freed_nodes_are_used_again() {
    let mut index = Index::new(1 << 20, false);
    for round in 0..100 {
        let pack = index.add_pack(OpenPack::main(id(round), 1, None));
        index.add(round, 0, &plain(pack, 0));
        index.mark_settled(Place { pack, index: 0 });
        index.pop(round);
        index.advance();
    }
    assert_eq!(index.nodes.len(), 1);
    assert!(index.packs.is_empty() && index.main.is_empty());
    assert_eq!(index.bytes, 0);
}

#[test]
fn what_is_taken_out_leaves_the_others_in_order_and_no_room_taken() {
    let mut index = Index::new(1 << 20, false);
    let empty = index.bytes;
    let pack = index.add_pack(OpenPack::main(id(1), 6, None));
    for at in 0..6 {
        index.add(if at == 5 { 8 } else { 7 }, at, &plain(pack, at));
    }
    assert!(index.holds(7, |_, at| at == 4) && !index.holds(7, |_, at| at == 5));
    // The first, one amid, and the last.
    let taken = index.take_out(7, |_, at| at % 2 == 0);
    let places: Vec<_> = taken.iter().map(|(place, position)| (place.index, *position)).collect();
    assert_eq!(places, [(0, (id(1), 0)), (2, (id(1), 2)), (4, (id(1), 4))]);
    assert_eq!(indices(&index, 7), [(1, 1), (1, 3)]);
    // The next one goes behind what is left, and what was freed is used again.
    index.add(7, 0, &plain(pack, 4));
    assert_eq!(indices(&index, 7), [(1, 1), (1, 3), (1, 4)]);
    assert_eq!(index.in_main(7).count(), 3);
    assert_eq!(index.nodes.len(), 6);
    assert!(index.take_out(7, |_, _| false).is_empty());
    assert_eq!(index.take_out(7, |_, _| true).len(), 3);
    assert_eq!(index.take_out(8, |pack, _| pack.id == id(1)).len(), 1);
    assert_eq!((index.state(7), index.state(8)), (None, None));
    assert_eq!(index.bytes, empty + Source::Main.pack_bytes());
}

#[test]
fn the_front_begins_behind_what_is_paused() {
    let mut index = Index::new(1 << 20, false);
    for seq in 1..=3 {
        let pack = index.add_pack(OpenPack::main(id(seq), 2, None));
        let (one, other) = if seq == 2 { (1, 2) } else { (1, 1) };
        index.add(10 * seq, one, &plain(pack, 0));
        index.add(10 * seq + 1, other, &plain(pack, 1));
    }
    let front = |index: &mut Index| index.front().map(|(_, pack)| pack.id.seq).collect::<Vec<_>>();
    assert_eq!(front(&mut index), [1, 2, 3]);
    index.count_paused(|shop| shop == 1);
    assert_eq!(front(&mut index), [2, 3]);
    index.pause_head(21);
    assert_eq!(front(&mut index), Vec::<u64>::new());
    assert_eq!(index.state(21), Some(State::Paused));
    index.count_paused(|_| false);
    assert_eq!(front(&mut index), [1, 2, 3]);
}
