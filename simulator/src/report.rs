//! Results of the runs as CSV: figures, and the limit and goodput over time.

use std::fmt::Write as _;

use crate::algorithm::Kind;
use crate::record::{ROW, Record};
use crate::run::run;
use crate::scenario::Scenario;

/// Most points of a curve.
const POINTS_MAX: usize = 120;

/// A scenario that was played with one algorithm.
#[derive(Debug)]
pub struct Played<'a> {
    scenario: &'a Scenario,
    kind: Kind,
    /// One record per seed.
    records: Vec<Record>,
}

/// An expectation and its results.
#[derive(Debug)]
pub struct Finding {
    /// Figure and its period in seconds.
    pub what: String,
    /// Expected range.
    pub range: String,
    /// One value per seed.
    pub measured: Vec<f64>,
    /// Smallest value of `measured` if the range has a lower bound, otherwise the largest.
    pub worst: f64,
    /// True if all values are in the range.
    pub holds: bool,
}

impl<'a> Played<'a> {
    /// Plays the scenario with every seed.
    pub fn play(scenario: &'a Scenario, kind: Kind) -> Self {
        let once = |seed: &u64| run(scenario, &mut *kind.build(&scenario.client), *seed);
        Self { scenario, kind, records: scenario.seeds.iter().map(once).collect() }
    }

    /// Results of each expectation.
    pub fn findings(&self) -> Vec<Finding> {
        let finding = |expectation: &crate::figure::Expectation| {
            let measured: Vec<f64> =
                self.records.iter().map(|record| expectation.measure(record)).collect();
            let is_floor = expectation.min.is_some();
            let worst = measured.iter().copied().reduce(if is_floor { f64::min } else { f64::max });
            Finding {
                what: format!(
                    "{}, {}–{} s",
                    expectation.figure.name(),
                    expectation.from,
                    expectation.to
                ),
                range: expectation.range(),
                holds: measured.iter().all(|one| expectation.holds(*one)),
                worst: worst.unwrap_or(f64::NAN),
                measured,
            }
        };
        self.scenario.expectations.iter().map(finding).collect()
    }

    /// Rows of `figures.csv`: scenario, about, algorithm, figure, range, worst, holds.
    pub fn figures_csv(&self) -> String {
        let mut rows = String::new();
        for finding in self.findings() {
            let row = writeln!(
                rows,
                "{},\"{}\",{},\"{}\",{},{:.4},{}",
                self.scenario.name,
                self.scenario.about,
                self.kind.name(),
                finding.what,
                finding.range,
                finding.worst,
                finding.holds
            );
            row.expect("BUG: a string takes all");
        }
        rows
    }

    /// Rows of the curves, with the first seed: scenario, algorithm, seconds, limit, goodput per
    /// second, capacity per second, and the number in flight that the backend needs.
    pub fn curves_csv(&self) -> String {
        let mut rows = String::new();
        let all = self.records.first().map_or(&[][..], |record| &record.rows);
        let wide = all.len().div_ceil(POINTS_MAX).max(1);
        for (number, part) in all.chunks(wide).enumerate() {
            let long = part.len() as f64;
            let mean =
                |of: &dyn Fn(&crate::record::Row) -> f64| part.iter().map(of).sum::<f64>() / long;
            let row = writeln!(
                rows,
                "{},{},{:.2},{:.1},{:.1},{:.1},{:.1}",
                self.scenario.name,
                self.kind.name(),
                (number * wide) as f64 * ROW.as_secs_f64(),
                mean(&|row| row.limit as f64),
                mean(&|row| f64::from(row.done) / ROW.as_secs_f64()),
                mean(&|row| row.capacity),
                mean(&|row| row.capacity * row.base),
            );
            row.expect("BUG: a string takes all");
        }
        rows
    }
}

/// Header of [`Played::figures_csv`].
pub const FIGURES_HEAD: &str = "scenario,about,algorithm,figure,range,worst,holds\n";
/// Header of [`Played::curves_csv`].
pub const CURVES_HEAD: &str = "scenario,algorithm,seconds,limit,goodput,capacity,needed\n";
