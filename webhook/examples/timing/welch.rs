//! Welch's t-test (B. L. Welch, 1947) over cropped samples.

use crate::samples::Sample;

/// Number of places at which the slowest part is cut off. At the last one, nothing is cut off.
pub(crate) const CROPPINGS: usize = 101;

/// Result of the cropping with the largest t.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Finding {
    pub t: f64,
    /// Mean time of each class, in nanoseconds.
    pub means: [f64; 2],
    /// Number of samples that this cropping kept.
    pub kept: usize,
}

/// Running mean and variance (B. P. Welford, 1962).
#[derive(Clone, Copy, Debug, Default)]
struct Moments {
    count: f64,
    mean: f64,
    squares: f64,
}

/// Returns the result with the largest |t| of all croppings.
pub(crate) fn judge(samples: &[Sample]) -> Finding {
    let mut sorted: Vec<u64> = samples.iter().map(|sample| sample.nanoseconds).collect();
    sorted.sort_unstable();
    let place = |cropping: usize| {
        // Denser towards the top, where interruptions lie.
        let part = 1.0 - 0.5f64.powf(10.0 * (cropping + 1) as f64 / CROPPINGS as f64);
        let at = (sorted.len() as f64 * part) as usize;
        if cropping + 1 == CROPPINGS { u64::MAX } else { sorted[at.min(sorted.len() - 1)] }
    };
    let findings = (0..CROPPINGS).map(|cropping| compare(samples, place(cropping)));
    let enough = findings.filter(|finding| finding.kept > samples.len() / 10);
    enough.max_by(|a, b| a.t.abs().total_cmp(&b.t.abs())).expect("the last cropping keeps all")
}

fn compare(samples: &[Sample], below: u64) -> Finding {
    let mut moments = [Moments::default(); 2];
    for sample in samples.iter().filter(|sample| sample.nanoseconds < below) {
        moments[usize::from(sample.is_random)].add(sample.nanoseconds as f64);
    }
    let [a, b] = moments;
    let error = (a.variance() / a.count + b.variance() / b.count).sqrt();
    let t = if error > 0.0 { (a.mean - b.mean) / error } else { 0.0 };
    Finding { t, means: [a.mean, b.mean], kept: (a.count + b.count) as usize }
}

impl Moments {
    fn add(&mut self, value: f64) {
        self.count += 1.0;
        let off = value - self.mean;
        self.mean += off / self.count;
        self.squares += off * (value - self.mean);
    }

    fn variance(&self) -> f64 {
        self.squares / (self.count - 1.0).max(1.0)
    }
}
