//! Shops of which everything hangs, in large numbers or with few slots.

use super::*;

/// 200 shops hang, ten are healthy, and shop Y recovers.
fn beside_200_that_hang(seed: u64, of_y: impl Fn(Duration) -> Answer + 'static) -> World {
    let answers: Box<Answers> = Box::new(move |shop, _, at| match shop {
        100..300 => Answer::Hangs,
        Y => of_y(at),
        _ => Answer::Takes(5 * MS),
    });
    let bounds = Bounds { concurrency_min: 16, concurrency_max: 16, rate_max: None };
    let mut world = World::new(Config { bounds, seed, ..config(16) }, answers);
    world.accept(5 * SECOND, [(Y, 0)]);
    for shop in 100..300 {
        world.accept(5 * SECOND + shop * 10 * MS, [(shop, 0)]);
    }
    world.accept(60 * SECOND, [(Y, 0)]);
    for tick in 0..6_000 {
        world.accept(SECOND + tick * 100 * MS, [(2 + tick % 10, 0)]);
    }
    world
}

#[test]
fn a_shop_that_recovers_among_two_hundred_that_hang_is_found_within_minutes() {
    for seed in 0..20 {
        let hangs = |at| if at < 20 * SECOND { Answer::Hangs } else { Answer::Takes(5 * MS) };
        let mut world = beside_200_that_hang(seed, hangs);
        world.run(300 * SECOND);
        let took = world.took.get(&(Y, 0)).map_or(0, Vec::len);
        assert_eq!(took, 2, "seed {seed}: of shop Y by 300 s");
        assert!((2..12).all(|shop| world.longest(shop) < 10 * SECOND), "seed {seed}");
    }
}

#[test]
fn a_shop_that_takes_25_seconds_is_served_among_two_hundred_that_hang() {
    for seed in 0..3 {
        let mut world = beside_200_that_hang(seed, |_| Answer::Takes(25 * SECOND));
        world.run(4 * 3600 * SECOND);
        let took = world.took.get(&(Y, 0)).map_or(0, Vec::len);
        assert_eq!(took, 2, "seed {seed}: of shop Y within four hours");
    }
}

/// A shard of the backend hangs, with most lanes that have their turn. None was tried before.
#[test]
fn ten_shops_are_served_soon_when_two_hundred_begin_to_hang_at_once() {
    for seed in 0..20 {
        let answers: Box<Answers> = Box::new(|shop, _, _| match shop {
            100..300 => Answer::Hangs,
            _ => Answer::Takes(5 * MS),
        });
        let bounds = Bounds { concurrency_min: 16, concurrency_max: 16, rate_max: None };
        let mut world = World::new(Config { bounds, seed, ..config(16) }, answers);
        for shop in 100..300 {
            world.accept(5 * SECOND + shop * 10 * MS, [(shop, 0)]);
        }
        for tick in 0..1_200 {
            world.accept(SECOND + tick * 100 * MS, [(2 + tick % 10, 0)]);
        }
        world.run(180 * SECOND);
        let mut waits: Vec<Duration> = world.took.values().flatten().copied().collect();
        waits.sort_unstable();
        let last = waits.last().copied().unwrap_or(Duration::MAX);
        assert_eq!(waits.len(), 1_200, "seed {seed}");
        assert!(last < 10 * SECOND, "seed {seed}: {last:?}");
    }
}

#[test]
fn what_hangs_beside_steady_traffic_is_given_up_though_each_attempt_is_cut_off() {
    for concurrency_max in [1, 2, 8] {
        let answers = unwell(Answer::Hangs, Duration::MAX);
        let config = Config { retry_for: 600 * SECOND, ..config(concurrency_max) };
        let mut world = known(config, answers);
        world.accept(SECOND, [(X, 0)]);
        for second in 1..7_200 {
            world.accept(second * SECOND, [(Y, 0)]);
        }
        world.run(7_200 * SECOND);
        assert_eq!(world.dead, 1, "{concurrency_max} at once");
    }
}

/// A configuration with a fixed number of slots.
fn slots(slots: usize, seed: u64) -> Config {
    let bounds = Bounds { concurrency_min: slots, concurrency_max: slots, rate_max: None };
    Config { bounds, seed, ..config(slots) }
}

#[test]
fn a_shop_that_takes_twelve_seconds_is_not_given_up_because_others_hang() {
    for seed in 0..10 {
        let answers: Box<Answers> = Box::new(|shop, _, _| match shop {
            100..120 => Answer::Hangs,
            X => Answer::Takes(12 * SECOND),
            _ => Answer::Takes(5 * MS),
        });
        let mut world = World::new(Config { retry_for: 60 * SECOND, ..slots(4, seed) }, answers);
        for round in 0..60 {
            world.accept(SECOND + round * 10 * SECOND, (100..120).map(|shop| (shop, 0)));
        }
        world.accept(5 * SECOND, [(X, 0)]);
        for tick in 0..6_000 {
            world.accept(SECOND + tick * 100 * MS, [(Y, 0)]);
        }
        world.run(600 * SECOND);
        assert!(world.longest(X) < 600 * SECOND, "seed {seed}");
        let of_others = world.took.iter().filter(|((shop, _), _)| *shop >= 100);
        let given_up: usize = of_others.map(|(_, took)| took.len()).sum();
        assert!(given_up > 0 && world.dead == given_up as u64, "seed {seed}: {given_up}");
    }
}

#[test]
fn two_hundred_shops_that_recover_slowly_are_found_together() {
    for seed in 0..3 {
        let answers: Box<Answers> = Box::new(|shop, _, at| match shop {
            100..300 if at < 120 * SECOND => Answer::Hangs,
            100..300 => Answer::Takes(5 * SECOND),
            _ => Answer::Takes(5 * MS),
        });
        let mut world = World::new(slots(16, seed), answers);
        for shop in 100..300 {
            world.accept(5 * SECOND + shop * 10 * MS, [(shop, 0)]);
        }
        for tick in 0..9_000 {
            world.accept(SECOND + tick * 100 * MS, [(2 + tick % 10, 0)]);
        }
        world.run(900 * SECOND);
        let served = world.took.keys().filter(|(shop, _)| *shop >= 100).count();
        assert_eq!(served, 200, "seed {seed}");
    }
}

#[test]
fn a_shop_that_recovers_is_found_though_two_thousand_others_have_a_backlog() {
    for seed in 0..3 {
        let answers: Box<Answers> = Box::new(|shop, _, at| match shop {
            100..300 => Answer::Hangs,
            Y if at < 20 * SECOND => Answer::Hangs,
            Y => Answer::Takes(5 * MS),
            _ => Answer::Takes(100 * MS),
        });
        let mut world = World::new(slots(16, seed), answers);
        world.accept(5 * SECOND, [(Y, 0)]);
        for shop in 100..300 {
            world.accept(5 * SECOND + shop * 10 * MS, [(shop, 0)]);
        }
        for round in 0..30 {
            world.accept(SECOND + round * 50 * MS, (1_000..3_000).map(|shop| (shop, 0)));
        }
        world.run(300 * SECOND);
        assert_eq!(world.took.get(&(Y, 0)).map_or(0, Vec::len), 1, "seed {seed}");
    }
}

#[test]
fn no_probe_is_cut_off_while_nothing_may_begin() {
    for seed in 0..10 {
        let answers: Box<Answers> = Box::new(|shop, _, at| match shop {
            100..140 if at < 60 * SECOND => Answer::Hangs,
            100..140 => Answer::Takes(10 * SECOND),
            9 if (61 * SECOND..62 * SECOND).contains(&at) => Answer::PausesAll(20 * SECOND),
            _ => Answer::Takes(5 * MS),
        });
        let mut world = World::new(slots(16, seed), answers);
        for round in 0..20 {
            world.accept(5 * SECOND + round * 10 * SECOND, (100..140).map(|shop| (shop, 0)));
        }
        for tick in 0..3_000 {
            world.accept(SECOND + tick * 100 * MS, [(2 + tick % 10, 0)]);
        }
        world.run(62 * SECOND + 500 * MS);
        let before = world.core.counts().cut_off;
        world.run(80 * SECOND);
        assert_eq!(world.core.counts().cut_off, before, "seed {seed}");
    }
}

#[test]
fn the_oldest_webhook_of_a_shop_that_hangs_is_given_up_while_new_ones_come() {
    let answers = unwell(Answer::Hangs, Duration::MAX);
    let mut world = known(Config { retry_for: 1_200 * SECOND, ..config(1) }, answers);
    for round in 0..360 {
        world.accept(2 * SECOND + round * 20 * SECOND, [(X, 0)]);
    }
    for tick in 0..72_000 {
        world.accept(SECOND + tick * 100 * MS, [(Y, 0)]);
    }
    world.run(7_200 * SECOND);
    assert!(world.dead > 200, "{} dead", world.dead);
    // One attempt had the full timeout.
    assert!(world.longest(Y) <= 30 * SECOND, "{:?}", world.longest(Y));
}

#[test]
fn a_turn_that_waits_for_the_rate_is_not_lost_to_a_called_lane() {
    for seed in 0..5 {
        let answers: Box<Answers> = Box::new(|shop, _, at| match shop {
            100..140 if at < 60 * SECOND => Answer::Hangs,
            _ => Answer::Takes(5 * MS),
        });
        let bounds = Bounds { concurrency_min: 16, concurrency_max: 16, rate_max: Some(20.0) };
        let mut world = known(Config { bounds, ..slots(16, seed) }, answers);
        for round in 0..5 {
            world.accept(SECOND + round * MS, (100..140).map(|shop| (shop, 0)));
        }
        for tick in 0..3_000 {
            world.accept(SECOND + tick * 33 * MS, [(2 + tick % 4, 0)]);
        }
        assert_eq!(world.run(1_200 * SECOND), 0, "seed {seed}");
    }
}

#[test]
fn slow_answers_do_not_make_slices_long_for_good() {
    for seed in 0..5 {
        let answers: Box<Answers> = Box::new(|shop, _, at| match shop {
            50 if at < 1_000 * SECOND => Answer::Hangs,
            100..110 if at > 120 * SECOND => Answer::Takes(20 * SECOND),
            100..300 => Answer::Hangs,
            _ => Answer::Takes(5 * MS),
        });
        let mut world = World::new(slots(16, seed), answers);
        world.accept(5 * SECOND, [(50, 0)]);
        for shop in 100..300 {
            world.accept(5 * SECOND + shop * 10 * MS, [(shop, 0)]);
        }
        for tick in 0..13_000 {
            world.accept(SECOND + tick * 100 * MS, [(2 + tick % 10, 0)]);
        }
        world.run(1_300 * SECOND);
        assert!(world.took.contains_key(&(50, 0)), "seed {seed}");
    }
}

#[test]
fn recording_what_stands_for_others_does_not_cost_a_lane_its_place() {
    for seed in 0..3 {
        let answers: Box<Answers> = Box::new(|shop, _, at| match shop {
            100..300 => Answer::Hangs,
            Y if at < 700 * SECOND => Answer::Hangs,
            _ => Answer::Takes(5 * MS),
        });
        let mut world = World::new(slots(16, seed), answers);
        world.accept(5 * SECOND, [(Y, COALESCED)]);
        for again in 0..2 {
            world.accept((30 + again) * SECOND, (1..50).map(|one| (Y, COALESCED + one)));
        }
        for shop in 100..300 {
            world.accept(5 * SECOND + shop * 10 * MS, [(shop, 0)]);
        }
        for tick in 0..10_000 {
            world.accept(SECOND + tick * 100 * MS, [(2 + tick % 10, 0)]);
        }
        world.run(1_000 * SECOND);
        assert!(world.took.contains_key(&(Y, COALESCED)), "seed {seed}");
    }
}

#[test]
fn a_backend_that_is_down_is_probed_once_a_second_though_lanes_stand_in_line() {
    let answers: Box<Answers> = Box::new(|shop, _, at| match shop {
        _ if at > 60 * SECOND => Answer::Fails(MS),
        100..300 => Answer::Hangs,
        _ => Answer::Takes(5 * MS),
    });
    let mut world = World::new(slots(16, 1), answers);
    for round in 0..5 {
        world.accept(5 * SECOND + round * MS, (100..300).map(|shop| (shop, 0)));
    }
    for tick in 0..1_500 {
        world.accept(SECOND + tick * 100 * MS, [(2 + tick % 10, 0)]);
    }
    let sent = |world: &World| world.sent.values().sum::<u64>();
    world.run(90 * SECOND);
    assert_eq!(world.core.counts().backend.went_down, 1);
    let before = sent(&world);
    world.run(150 * SECOND);
    assert!(sent(&world) - before <= 4 * 60, "{} in a minute", sent(&world) - before);
}

#[test]
fn with_a_single_slot_a_webhook_waits_for_one_lane_of_the_line_and_not_for_all() {
    let answers: Box<Answers> = Box::new(|shop, _, _| match shop {
        100..140 => Answer::Hangs,
        _ => Answer::Takes(5 * MS),
    });
    let mut world = known(Config { retry_for: 600 * SECOND, ..config(1) }, answers);
    for shop in 100..140 {
        world.accept(SECOND + (shop - 100) * 10 * SECOND, [(shop, 0)]);
    }
    for second in 1..3_600 {
        world.accept(second * SECOND, [(Y, 0)]);
    }
    world.run(3_600 * SECOND);
    assert!(world.longest(Y) <= 60 * SECOND, "{:?}", world.longest(Y));
}

#[test]
fn a_lane_keeps_its_place_while_its_shop_waits_for_its_rate() {
    for seed in 0..5 {
        let answers: Box<Answers> = Box::new(|shop, kind, at| match (shop, kind) {
            (100..300, _) => Answer::Hangs,
            (Y, 1) if at < 20 * SECOND => Answer::Hangs,
            _ => Answer::Takes(5 * MS),
        });
        let shop_bounds = ShopBounds { concurrency_max: u32::MAX, spacing: SECOND };
        let mut world = World::new(Config { shop_bounds, ..slots(16, seed) }, answers);
        world.accept(4 * SECOND, [(Y, 1)]);
        world.accept(5 * SECOND, (0..2_000).map(|_| (Y, 0)));
        for shop in 100..300 {
            world.accept(5 * SECOND + shop * 10 * MS, [(shop, 0)]);
        }
        for tick in 0..3_000 {
            world.accept(SECOND + tick * 100 * MS, [(2 + tick % 10, 0)]);
        }
        world.run(300 * SECOND);
        assert!(world.took.contains_key(&(Y, 1)), "seed {seed}");
    }
}

#[test]
fn lanes_of_paused_shops_do_not_stop_the_line() {
    for seed in 0..5 {
        let answers: Box<Answers> = Box::new(|shop, _, at| match shop {
            100..300 => Answer::Hangs,
            Y if at < 100 * SECOND => Answer::Hangs,
            _ => Answer::Takes(5 * MS),
        });
        let mut world = World::new(slots(16, seed), answers);
        world.accept(5 * SECOND, [(Y, 0)]);
        for round in 0..3 {
            for shop in 100..300 {
                world.accept(5 * SECOND + round * MS + shop * 10 * MS, [(shop, 0)]);
            }
        }
        for tick in 0..6_000 {
            world.accept(SECOND + tick * 100 * MS, [(2 + tick % 10, 0)]);
        }
        world.run(60 * SECOND);
        world.version += 1;
        world.step(vec![Event::Controls(Controls {
            version: world.version,
            is_all_paused: false,
            shops: (101..201).collect(),
            filters: Vec::new(),
            drops: Drops::default(),
        })]);
        world.run(600 * SECOND);
        assert!(world.took.contains_key(&(Y, 0)), "seed {seed}");
    }
}

#[test]
fn slow_deliveries_that_succeed_leave_the_line_a_slot() {
    for seed in 0..5 {
        let answers: Box<Answers> = Box::new(|shop, _, at| match shop {
            100..108 => Answer::Takes(4_500 * MS),
            Y if at < 20 * SECOND => Answer::Hangs,
            _ => Answer::Takes(5 * MS),
        });
        let mut world = World::new(slots(16, seed), answers);
        world.accept(5 * SECOND, [(Y, 0)]);
        for round in 0..120 {
            for shop in 100..108 {
                let at = SECOND + round * 5 * SECOND + (shop - 100) * 600 * MS;
                world.accept(at, [(shop, 0)]);
            }
        }
        for tick in 0..6_000 {
            world.accept(SECOND + tick * 100 * MS, [(2 + tick % 10, 0)]);
        }
        world.run(600 * SECOND);
        assert!(world.took.contains_key(&(Y, 0)), "seed {seed}");
    }
}

/// `shops` shops hang. All are accepted in one pack before the first webhook of ten healthy shops.
fn all_that_hang_come_first(config: Config, shops: u32) -> World {
    let answers: Box<Answers> = Box::new(move |shop, _, _| match shop {
        100.. => Answer::Hangs,
        _ => Answer::Takes(5 * MS),
    });
    let mut world = World::new(config, answers);
    for _ in 0..3 {
        world.accept(5 * SECOND, (100..100 + shops).map(|shop| (shop, 0)));
    }
    for tick in 0..3_000 {
        world.accept(6 * SECOND + tick * 100 * MS, [(2 + tick % 10, 0)]);
    }
    world
}

#[test]
fn ten_shops_are_found_though_two_hundred_that_hang_took_the_backend_down() {
    for seed in 0..20 {
        let mut world = all_that_hang_come_first(slots(16, seed), 200);
        world.run(320 * SECOND);
        let served: usize =
            (2..12).filter_map(|shop| world.took.get(&(shop, 0))).map(Vec::len).sum();
        let longest = (2..12).map(|shop| world.longest(shop)).max();
        assert_eq!(served, 3_000, "seed {seed}: longest {longest:?}");
        assert!(longest < Some(150 * SECOND), "seed {seed}: {longest:?}");
    }
}

#[test]
fn with_a_single_slot_ten_shops_are_found_behind_forty_that_hang() {
    for seed in 0..20 {
        let mut world = all_that_hang_come_first(slots(1, seed), 40);
        world.run(320 * SECOND);
        let longest = (2..12).map(|shop| world.longest(shop)).max();
        assert!(longest < Some(240 * SECOND), "seed {seed}: {longest:?}");
    }
}

/// Everything hangs until `recovers`. Then ten shops of 210 are healthy.
fn few_recover(recovers: Duration, seed: u64) -> World {
    let answers: Box<Answers> = Box::new(move |shop, _, at| match shop {
        2..12 if at >= recovers => Answer::Takes(5 * MS),
        _ => Answer::Hangs,
    });
    let mut world = World::new(slots(16, seed), answers);
    for round in 0..3 {
        world.accept(SECOND + round * MS, (100..300).map(|shop| (shop, 0)));
        world.accept(SECOND + round * MS, (2..12).map(|shop| (shop, 0)));
    }
    world
}

#[test]
fn a_backend_that_was_down_altogether_is_found_by_the_few_shops_that_recover() {
    // Before and after all lanes have failed.
    for (recovers, found) in [(60, 180), (900, 960)] {
        for seed in 0..20 {
            let mut world = few_recover(recovers * SECOND, seed);
            world.run(found * SECOND);
            assert!(world.core.counts().backend.came_back > 0, "seed {seed}");
            world.run((found + 60) * SECOND);
            let served = (2..12).filter(|shop| world.took.contains_key(&(*shop, 0))).count();
            assert_eq!(served, 10, "seed {seed}, recovers at {recovers} s");
        }
    }
}

#[test]
fn a_backend_that_is_down_and_hangs_has_four_probes_at_most() {
    let mut world = few_recover(Duration::MAX, 1);
    world.run(91 * SECOND);
    for second in 91..400 {
        world.run(second * SECOND);
        let status = world.core.status();
        assert!(status.is_down && status.in_flight <= 4, "{} in flight", status.in_flight);
    }
}

/// The same backend, but every answer takes long. Its probes get the time that they need.
#[test]
fn a_backend_that_was_down_and_now_takes_twenty_seconds_is_found() {
    for concurrency in [1, 4, 16] {
        let answers: Box<Answers> = Box::new(|_, _, at| match at {
            _ if at < 200 * SECOND => Answer::Hangs,
            _ => Answer::Takes(20 * SECOND),
        });
        let mut world = World::new(slots(concurrency, 1), answers);
        world.accept(SECOND, (100..300).map(|shop| (shop, 0)));
        world.run(200 * SECOND);
        assert!(world.core.counts().backend.went_down > 0);
        world.run(330 * SECOND);
        assert!(world.core.counts().delivered > 0, "{concurrency} slots");
    }
}

/// Quick failures do not shorten the time of a slow probe.
#[test]
fn a_shop_that_takes_twelve_seconds_is_found_among_thirty_that_fail_at_once() {
    for concurrency in [1, 4, 16] {
        let answers: Box<Answers> = Box::new(|shop, _, _| match shop {
            X => Answer::Takes(12 * SECOND),
            _ => Answer::Fails(MS),
        });
        let mut world = World::new(slots(concurrency, 1), answers);
        for round in 0..20 {
            world.accept(SECOND + round * MS, (100..130).map(|shop| (shop, 0)));
        }
        world.accept(60 * SECOND, [(X, 0)]);
        world.run(1_800 * SECOND);
        assert!(world.took.contains_key(&(X, 0)), "{concurrency} slots");
    }
}

/// One kind of each shop recovers, after the shop's older backlog of another kind.
#[test]
fn a_kind_that_recovers_is_found_behind_one_that_still_fails() {
    for still in [Answer::Hangs, Answer::Fails(MS)] {
        let answers: Box<Answers> = Box::new(move |_, kind, at| match kind {
            1 if at >= 300 * SECOND => Answer::Takes(5 * MS),
            _ => still,
        });
        let mut world = World::new(slots(16, 1), answers);
        for round in 0..100 {
            world.accept(SECOND + round * MS, (2..12).map(|shop| (shop, 0)));
        }
        world.accept(2 * SECOND, (2..12).map(|shop| (shop, 1)));
        world.run(600 * SECOND);
        assert!((2..12).all(|shop| world.took.contains_key(&(shop, 1))), "{still:?}");
    }
}

/// No other lane waits for the slot of a single webhook.
#[test]
fn a_lone_probe_has_all_its_time() {
    for recovers in (400..700).step_by(50) {
        let recovers = recovers * SECOND;
        let answers: Box<Answers> = Box::new(move |_, _, at| match at {
            _ if at < 60 * SECOND => Answer::Fails(MS),
            _ if at < recovers => Answer::Hangs,
            _ => Answer::Takes(20 * SECOND),
        });
        let mut world = World::new(slots(1, 1), answers);
        world.accept(SECOND, (2..5).map(|shop| (shop, 0)));
        world.run(recovers + 150 * SECOND);
        assert!(world.core.counts().delivered > 0, "recovers at {recovers:?}");
    }
}

#[test]
fn ten_shops_of_an_app_that_takes_a_second_are_found_behind_two_hundred_that_hang() {
    for seed in 0..10 {
        let answers: Box<Answers> = Box::new(|shop, _, _| match shop {
            100.. => Answer::Hangs,
            _ => Answer::Takes(SECOND),
        });
        let mut world = World::new(slots(16, seed), answers);
        world.accept(SECOND, (2..12).map(|shop| (shop, 0)));
        for round in 0..3 {
            world.accept(5 * SECOND + round * MS, (100..300).map(|shop| (shop, 0)));
        }
        for second in 10..300 {
            world.accept(second * SECOND, [(2 + second % 10, 0)]);
        }
        world.run(600 * SECOND);
        let longest = (2..12).map(|shop| world.longest(shop)).max();
        assert!(longest < Some(420 * SECOND), "seed {seed}: {longest:?}");
    }
}

/// Lanes that hung before now fail at once.
#[test]
fn a_backend_that_fails_at_once_is_probed_once_a_second() {
    let answers: Box<Answers> = Box::new(|_, _, at| match at {
        _ if at < 300 * SECOND => Answer::Hangs,
        _ => Answer::Fails(MS),
    });
    let mut world = World::new(slots(16, 1), answers);
    for round in 0..5 {
        world.accept(SECOND + round * MS, (100..140).map(|shop| (shop, 0)));
    }
    let sent = |world: &World| world.sent.values().sum::<u64>();
    world.run(340 * SECOND);
    let before = sent(&world);
    world.run(400 * SECOND);
    assert!(sent(&world) - before <= 65, "{} in a minute", sent(&world) - before);
}

/// A failure that is not the lane's own does not keep a lane at the front of the probes.
#[test]
fn shops_that_recover_are_found_though_another_answers_503_for_ever() {
    for pause in [MS, 5 * SECOND] {
        let answers: Box<Answers> = Box::new(move |shop, _, at| match shop {
            X => Answer::PausesAll(pause),
            _ if at < 100 * SECOND => Answer::Fails(MS),
            _ => Answer::Takes(5 * MS),
        });
        let mut world = World::new(slots(16, 1), answers);
        world.accept(SECOND, (0..2_000).map(|_| (X, 0)));
        for round in 0..20 {
            world.accept(SECOND + round * MS, (2..12).map(|shop| (shop, 0)));
        }
        world.run(600 * SECOND);
        let served = (2..12).filter(|shop| world.took.contains_key(&(*shop, 0))).count();
        assert_eq!(served, 10, "503 for {pause:?}");
    }
}

/// New hanging shops arrive faster than they are probed.
#[test]
fn shops_that_recover_are_found_though_new_ones_that_hang_come_all_the_time() {
    let answers: Box<Answers> = Box::new(|shop, _, at| match shop {
        2..12 if at >= 100 * SECOND => Answer::Takes(5 * MS),
        _ => Answer::Hangs,
    });
    let mut world = World::new(slots(16, 1), answers);
    world.accept(SECOND, (2..12).map(|shop| (shop, 0)));
    for tick in 0..6_000_u32 {
        world.accept(2 * SECOND + tick * 100 * MS, [(100 + tick, 0)]);
    }
    world.run(100 * SECOND);
    assert!(world.core.status().is_down);
    world.run(200 * SECOND);
    assert!(world.core.counts().backend.came_back > 0);
}

#[test]
fn a_backend_that_asks_for_less_of_each_shop_is_probed_once_a_second() {
    let answers: Box<Answers> = Box::new(|_, _, at| match at {
        _ if at < 60 * SECOND => Answer::Fails(MS),
        _ => Answer::PausesShop(60 * SECOND),
    });
    let mut world = World::new(slots(16, 1), answers);
    for round in 0..3 {
        world.accept(SECOND + round * MS, (100..700).map(|shop| (shop, 0)));
    }
    let sent = |world: &World| world.sent.values().sum::<u64>();
    world.run(59 * SECOND);
    let before = sent(&world);
    world.run(70 * SECOND);
    assert!(sent(&world) - before <= 15, "{}", sent(&world) - before);
}

/// Slow refusals: each probe may cost a webhook.
#[test]
fn a_backend_that_refuses_slowly_has_one_probe_at_a_time() {
    let answers: Box<Answers> = Box::new(|_, _, at| match at {
        _ if at < 60 * SECOND => Answer::Takes(2 * SECOND),
        _ => Answer::Refuses(10 * SECOND),
    });
    let mut world = World::new(slots(16, 1), answers);
    for second in 1..60 {
        world.accept(second * SECOND, [(2 + second % 10, 0)]);
    }
    world.accept(61 * SECOND, (100..1_100).map(|shop| (shop, 0)));
    let sent = |world: &World| world.sent.values().sum::<u64>();
    world.run(120 * SECOND);
    assert!(world.core.status().is_refusing);
    let before = sent(&world);
    world.run(180 * SECOND);
    assert!(sent(&world) - before <= 6, "{} in a minute", sent(&world) - before);
}

/// One slot is for lanes that failed. A lane that did not fail need not wait for it.
#[test]
fn a_new_shop_is_probed_beside_one_that_hangs_while_the_backend_refuses() {
    for arrives in (105..135).step_by(5) {
        let answers: Box<Answers> = Box::new(|shop, _, at| match shop {
            50 => Answer::Takes(5 * MS),
            _ if at < 60 * SECOND => Answer::Takes(5 * MS),
            _ if at < 100 * SECOND => Answer::Refuses(MS),
            _ => Answer::Hangs,
        });
        let mut world = World::new(slots(16, 1), answers);
        for tick in 0..1_500 {
            world.accept(SECOND + tick * 100 * MS, [(2 + tick % 10, 0)]);
        }
        world.run(99 * SECOND);
        assert!(world.core.status().is_refusing);
        world.accept(arrives * SECOND, [(50, 0)]);
        world.run(arrives * SECOND + 15 * SECOND);
        assert!(world.took.contains_key(&(50, 0)), "arrives at {arrives} s");
    }
}

/// Most probes of a refusing backend go to new lanes, and slow ones are under way all the time.
#[test]
fn a_shop_that_recovers_is_found_before_thousands_that_were_never_tried() {
    let answers: Box<Answers> = Box::new(|shop, _, at| match shop {
        _ if at < 10 * SECOND => Answer::Takes(5 * MS),
        Y if at > 100 * SECOND => Answer::Takes(5 * MS),
        _ => Answer::Refuses(2 * SECOND),
    });
    let config = Config { retry_refused_for: 48 * 3600 * SECOND, ..slots(16, 7) };
    let mut world = World::new(config, answers);
    for round in 0..120 {
        world.accept(SECOND + round * 100 * MS, (0..12).map(|shop| (shop, 0)));
    }
    world.accept(30 * SECOND, (100..4_100).map(|shop| (shop, 0)));
    world.run(100 * SECOND);
    let before = world.took.get(&(Y, 0)).map_or(0, Vec::len);
    world.run(3_100 * SECOND);
    assert!(world.took.get(&(Y, 0)).map_or(0, Vec::len) > before, "{:?}", world.core.status());
}

/// One kind of shop Y causes pauses of the shop again and again, and another kind has recovered.
#[test]
fn a_suspect_lane_keeps_its_place_while_its_shop_is_paused() {
    for seed in 0..5 {
        let answers: Box<Answers> = Box::new(|shop, kind, at| match (shop, kind) {
            (100..300, _) => Answer::Hangs,
            (Y, 0) => Answer::PausesShop(60 * SECOND),
            (Y, _) if at < 20 * SECOND => Answer::Hangs,
            _ => Answer::Takes(5 * MS),
        });
        let mut world = World::new(slots(16, seed), answers);
        world.accept(5 * SECOND, [(Y, 1)]);
        for round in 0..100 {
            world.accept(15 * SECOND + round * 10 * SECOND, [(Y, 0)]);
        }
        for shop in 100..300 {
            world.accept(5 * SECOND + shop * 10 * MS, [(shop, 0)]);
        }
        for tick in 0..9_000 {
            world.accept(SECOND + tick * 100 * MS, [(2 + tick % 10, 0)]);
        }
        world.run(900 * SECOND);
        assert_eq!(world.took.get(&(Y, 1)).map_or(0, Vec::len), 1, "seed {seed}");
    }
}

#[test]
fn a_shop_that_hung_and_then_says_that_all_is_to_be_left_alone_is_believed() {
    let answers: Box<Answers> = Box::new(|shop, _, at| match shop {
        X if at < 60 * SECOND => Answer::Hangs,
        X => Answer::PausesAll(20 * SECOND),
        _ => Answer::Takes(5 * MS),
    });
    let mut world = known(slots(16, 7), answers);
    world.accept(10 * SECOND, [(X, 0)]);
    for tick in 0..3_000 {
        world.accept(SECOND + tick * 100 * MS, [(Y, 0)]);
    }
    world.run(300 * SECOND);
    assert!(world.longest(Y) > 15 * SECOND, "{:?}", world.longest(Y));
}
