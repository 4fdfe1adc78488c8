//! Tests of the whole limiter with a closed loop of a few lines. `simulator/` has the real
//! backends.

use super::*;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn limiter() -> Limiter {
    Limiter::new(Bounds { concurrency_min: 1, concurrency_max: 64, rate_max: None })
}

fn sample(began: Duration, in_flight: usize, signal: Signal) -> Sample {
    Sample { began, in_flight, signal }
}

/// Drives the limiter from `from` for `length`. The backend takes 10 ms under any load. As many
/// deliveries as allowed are under way, at most `most`. `answer` decides how each one ends.
fn drive(
    limiter: &mut Limiter,
    from: Duration,
    length: Duration,
    most: usize,
    mut answer: impl FnMut(usize) -> Signal,
) {
    let mut now = from;
    let mut number = 0;
    while now < from + length {
        let mut in_flight = 0;
        while in_flight < most && limiter.admit(in_flight, now) {
            in_flight += 1;
        }
        let began = now;
        now += 10 * MS;
        for _ in 0..in_flight {
            number += 1;
            limiter.ended(&sample(began, in_flight, answer(number)), now, 0.5);
        }
    }
}

#[test]
fn it_grows_to_the_most_that_is_allowed_where_nothing_queues() {
    let mut limiter = limiter();
    assert_eq!(limiter.concurrency(Duration::ZERO), 1);
    drive(&mut limiter, Duration::ZERO, 5 * SECOND, usize::MAX, |_| Signal::Done);
    assert_eq!(limiter.concurrency(5 * SECOND), 64);
}

#[test]
fn it_does_not_grow_while_there_is_little_to_send() {
    let mut limiter = limiter();
    drive(&mut limiter, Duration::ZERO, 60 * SECOND, 3, |_| Signal::Done);
    assert!(limiter.concurrency(60 * SECOND) <= 4);
}

#[test]
fn a_resource_that_always_fails_changes_nothing() {
    let mut limiter = limiter();
    let mostly = |number| if number % 3 == 0 { Signal::Failed } else { Signal::Done };
    drive(&mut limiter, Duration::ZERO, 5 * SECOND, usize::MAX, mostly);
    assert_eq!(limiter.concurrency(5 * SECOND), 64);
    drive(&mut limiter, 5 * SECOND, SECOND, usize::MAX, |_| Signal::Failed);
    assert_eq!(limiter.concurrency(6 * SECOND), 64);
}

#[test]
fn many_that_time_out_cut_it_and_one_in_a_hundred_does_not() {
    let mut limiter = limiter();
    let rarely = |number| if number % 100 == 0 { Signal::TimedOut } else { Signal::Done };
    drive(&mut limiter, Duration::ZERO, 5 * SECOND, usize::MAX, rarely);
    assert_eq!(limiter.concurrency(5 * SECOND), 64);
    let often = |number| if number % 5 == 0 { Signal::TimedOut } else { Signal::Done };
    drive(&mut limiter, 5 * SECOND, SECOND, usize::MAX, often);
    assert!(limiter.concurrency(6 * SECOND) < 32);
}

#[test]
fn retry_after_pauses_it_and_it_begins_again_with_one() {
    let mut limiter = limiter();
    drive(&mut limiter, Duration::ZERO, 5 * SECOND, usize::MAX, |_| Signal::Done);
    let signal = Signal::Unavailable { retry_after: Some(3 * SECOND) };
    limiter.ended(&sample(5 * SECOND, 1, signal), 5 * SECOND, 0.5);
    assert!(limiter.is_paused(8 * SECOND - MS));
    assert!(!limiter.admit(0, 8 * SECOND - MS));
    assert_eq!(limiter.concurrency(6 * SECOND), 0);
    assert_eq!(limiter.wakes_at(6 * SECOND), Some(8 * SECOND));
    assert_eq!(limiter.concurrency(8 * SECOND), 1);
    assert!(limiter.admit(0, 8 * SECOND));
}

#[test]
fn a_backend_that_is_down_is_probed_ever_more_rarely_and_one_success_ends_that() {
    let mut limiter = limiter();
    drive(&mut limiter, Duration::ZERO, 5 * SECOND, usize::MAX, |_| Signal::Done);
    let mut now = 5 * SECOND;
    let mut pauses = Vec::new();
    let mut probes = 0;
    while now < 605 * SECOND {
        if limiter.admit(0, now) {
            limiter.ended(&sample(now, 1, Signal::Broken), now, 0.999);
            probes += 1;
        } else {
            let wakes_at = limiter.wakes_at(now).expect("a pause ends");
            pauses.push(wakes_at - now);
            now = wakes_at;
        }
    }
    assert!(probes < 60, "{probes}");
    assert!(pauses[0] < SECOND);
    assert!(pauses.iter().all(|pause| *pause <= 60 * SECOND));
    assert!(pauses.last().is_some_and(|pause| *pause > 55 * SECOND));
    assert_eq!(limiter.concurrency(now), 1);
    limiter.ended(&sample(now, 1, Signal::Done), now + 10 * MS, 0.5);
    drive(&mut limiter, now + 10 * MS, 5 * SECOND, usize::MAX, |_| Signal::Done);
    assert_eq!(limiter.concurrency(now + 6 * SECOND), 64);
}

#[test]
fn the_rate_is_kept_and_says_when_it_allows_the_next() {
    let rate_max = Some(100.0);
    let mut limiter = Limiter::new(Bounds { concurrency_min: 8, concurrency_max: 8, rate_max });
    let mut now = Duration::ZERO;
    let mut admitted = 0;
    while now < 10 * SECOND {
        if limiter.admit(0, now) {
            admitted += 1;
        } else {
            now = limiter.wakes_at(now).expect("the rate allows another");
        }
    }
    assert!((1000..=1003).contains(&admitted), "{admitted}");
}

#[test]
fn a_429_lowers_the_rate_to_what_was_accepted() {
    let mut limiter = limiter();
    // Half of 1,600 a second is accepted.
    let half = |number| match number % 2 {
        0 => Signal::Done,
        _ => Signal::Overloaded { retry_after: None },
    };
    drive(&mut limiter, Duration::ZERO, 2 * SECOND, 16, |_| Signal::Done);
    drive(&mut limiter, 2 * SECOND, 200 * MS, 16, half);
    let mut sent = 0;
    drive(&mut limiter, 3 * SECOND, SECOND, 16, |_| {
        sent += 1;
        Signal::Done
    });
    assert!((800..1600).contains(&sent), "{sent}");
}

#[test]
fn it_stays_within_its_bounds() {
    let bounds = Bounds { concurrency_min: 4, concurrency_max: 6, rate_max: None };
    let mut limiter = Limiter::new(bounds);
    assert_eq!(limiter.concurrency(Duration::ZERO), 4);
    drive(&mut limiter, Duration::ZERO, 5 * SECOND, usize::MAX, |_| Signal::Done);
    assert_eq!(limiter.concurrency(5 * SECOND), 6);
    let often = |number| if number % 3 == 0 { Signal::TimedOut } else { Signal::Done };
    drive(&mut limiter, 5 * SECOND, 5 * SECOND, usize::MAX, often);
    assert_eq!(limiter.concurrency(10 * SECOND), 4);
}

/// A minute of a closed loop: all that may be under way is, and is answered at once after `took_ms` of their number and the
/// time, give or take the part `noise`. Returns the limits from `from` on, in order.
fn closed_loop(noise: f64, from: Duration, took_ms: impl Fn(f64, Duration) -> f64) -> Vec<usize> {
    let bounds = Bounds { concurrency_min: 1, concurrency_max: 512, rate_max: None };
    let mut limiter = Limiter::new(bounds);
    let mut now = Duration::ZERO;
    let mut random = 1_u32;
    let mut limits = Vec::new();
    while now < 60 * SECOND {
        let mut in_flight = 0;
        while limiter.admit(in_flight, now) {
            in_flight += 1;
        }
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let chance = f64::from(random >> 8) / f64::from(1 << 24);
        let took = took_ms(window::count(in_flight), now) * (1.0 - noise + 2.0 * noise * chance);
        let began = now;
        now += Duration::from_secs_f64(took / 1e3);
        for _ in 0..in_flight {
            limiter.ended(&sample(began, in_flight, Signal::Done), now, 0.5);
        }
        if now >= from {
            limits.push(limiter.concurrency(now));
        }
    }
    limits.sort_unstable();
    limits
}

/// A backend on the same machine: a delivery takes 0.3 ms, and 20 µs longer for each one under way.
/// Twice a second others use the machine for 60 ms, and everything takes three times as long.
#[test]
fn below_a_millisecond_a_longer_latency_is_no_queue() {
    let limits = closed_loop(0.3, 5 * SECOND, |in_flight, now| {
        let slower = if now.as_millis() % 500 < 60 { 3.0 } else { 1.0 };
        (0.3 + 0.02 * in_flight) * slower
    });
    // At 20, it carries 0.57 of what it carries at any number.
    assert!(limits[limits.len() / 10] >= 20, "{}", limits[limits.len() / 10]);
}

/// A backend of four workers, 1 ms each, of which three begin after 10 s. More than four under way bring nothing, and cost
/// less than anyone waits for.
#[test]
fn up_to_three_milliseconds_the_limit_grows_without_a_gain() {
    let limits = closed_loop(0.1, 40 * SECOND, |in_flight, now| {
        let workers = if now < 10 * SECOND { 1.0 } else { 4.0 };
        (in_flight / workers).max(1.0)
    });
    let median = limits[limits.len() / 2];
    assert!((8..=16).contains(&median), "{median}");
}
