//! Random numbers from one seed.

use std::f64::consts::TAU;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// Random number generator.
#[derive(Debug)]
pub struct Random(SmallRng);

impl Random {
    /// Creates a generator. The same seed gives the same numbers.
    pub fn from_seed(seed: u64) -> Self {
        Self(SmallRng::seed_from_u64(seed))
    }

    /// Returns a number uniform in [0, 1).
    pub fn uniform(&mut self) -> f64 {
        self.0.random()
    }

    /// Returns an exponentially distributed number with this mean.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.uniform()).ln()
    }

    /// Returns a lognormally distributed number with this mean. `sigma` is the deviation of its
    /// logarithm.
    pub fn lognormal(&mut self, mean: f64, sigma: f64) -> f64 {
        // Box–Muller transform.
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        let normal = radius * (TAU * self.uniform()).cos();
        mean * (sigma * normal - sigma * sigma / 2.0).exp()
    }
}
