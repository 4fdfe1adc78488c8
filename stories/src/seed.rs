//! One printed seed for every random choice of a test, so that a failure can be reproduced.

use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::report::say;

/// Seed of this run: `SEED` from the environment, or the test's default.
pub fn seed(story: &str, default: u64) -> u64 {
    let seed = match std::env::var("SEED") {
        Ok(text) => text.parse().expect("SEED must be a whole number"),
        Err(_) => default,
    };
    say(&format!("{story}: SEED={seed}"));
    seed
}

/// A random generator for one actor of the test. Actors run concurrently, so each needs its own
/// sequence to be reproducible.
pub fn chance(seed: u64, actor: u64) -> StdRng {
    StdRng::seed_from_u64(seed ^ actor.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}
