//! Figures that are read from a record, and their expected ranges.

use serde::Deserialize;

use crate::record::{ROW, Record, Row};

/// Figure that can be read from a record between two times.
#[derive(Debug, Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// Answers with 200, as a fraction of the backend's capacity.
    Goodput,
    /// Answers with 200 per second.
    DonePerSecond,
    /// Median latency, as a multiple of the median of a single request.
    P50,
    /// Seconds until the goodput of the next second is at least 0.9.
    Reached,
    /// Largest number in flight above the number that the backend needs, as a fraction of that
    /// number.
    Excess,
    /// Lowest limit, as a fraction of the number that the backend needs.
    LimitLowest,
    /// Highest limit, as a fraction of the number that the backend needs.
    LimitHighest,
    /// Fraction of the answers that are 429.
    Overloaded,
    /// Number of requests.
    Sent,
    /// Requests per second.
    SentPerSecond,
}

/// Expected range of a figure.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expectation {
    /// Figure that is checked.
    pub figure: Figure,
    /// Start of the period, in seconds.
    pub from: f64,
    /// End of the period, in seconds.
    pub to: f64,
    /// Lower bound.
    pub min: Option<f64>,
    /// Upper bound.
    pub max: Option<f64>,
}

impl Expectation {
    /// Reads the figure from a record.
    pub fn measure(&self, record: &Record) -> f64 {
        self.figure.of(record, self.from, self.to)
    }

    /// True if the value is in the range.
    pub fn holds(&self, measured: f64) -> bool {
        self.min.is_none_or(|min| measured >= min) && self.max.is_none_or(|max| measured <= max)
    }

    /// Text form of the range.
    pub fn range(&self) -> String {
        match (self.min, self.max) {
            (Some(min), Some(max)) => format!("{min} to {max}"),
            (Some(min), None) => format!("≥ {min}"),
            (None, Some(max)) => format!("≤ {max}"),
            (None, None) => "any".to_owned(),
        }
    }
}

impl Figure {
    fn of(self, record: &Record, from: f64, to: f64) -> f64 {
        let rows = record.between(from, to);
        match self {
            Self::Goodput => goodput(rows),
            Self::DonePerSecond => sum(rows, |row| row.done) / (to - from),
            Self::P50 => p50(record, rows, from, to),
            Self::Reached => reached(record, from, to),
            Self::Excess => {
                highest(rows, |row| row.in_flight as f64 / (row.capacity * row.base) - 1.0)
            }
            Self::LimitLowest => {
                -highest(rows, |row| -(row.limit as f64) / (row.capacity * row.base))
            }
            Self::LimitHighest => highest(rows, |row| row.limit as f64 / (row.capacity * row.base)),
            Self::Overloaded => {
                let all = sum(rows, |row| row.done + row.overloaded + row.failed);
                sum(rows, |row| row.overloaded) / all.max(1.0)
            }
            Self::Sent => sum(rows, |row| row.sent),
            Self::SentPerSecond => sum(rows, |row| row.sent) / (to - from),
        }
    }

    /// Name in the reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Goodput => "goodput / capacity",
            Self::DonePerSecond => "done / s",
            Self::P50 => "p50 / base",
            Self::Reached => "s to 0.9 goodput",
            Self::Excess => "excess in flight / BDP",
            Self::LimitLowest => "lowest limit / BDP",
            Self::LimitHighest => "highest limit / BDP",
            Self::Overloaded => "429 share",
            Self::Sent => "sent",
            Self::SentPerSecond => "sent / s",
        }
    }
}

fn goodput(rows: &[Row]) -> f64 {
    let can: f64 = rows.iter().map(|row| row.capacity * ROW.as_secs_f64()).sum();
    sum(rows, |row| row.done) / can.max(1e-9)
}

fn p50(record: &Record, rows: &[Row], from: f64, to: f64) -> f64 {
    let ended = |(at, _): &&(f32, f32)| f64::from(*at) >= from && f64::from(*at) < to;
    let mut latencies: Vec<f32> = record.latencies.iter().filter(ended).map(|one| one.1).collect();
    if latencies.is_empty() {
        return f64::INFINITY;
    }
    let middle = latencies.len() / 2;
    let (_, p50, _) = latencies.select_nth_unstable_by(middle, f32::total_cmp);
    f64::from(*p50) / rows.last().map_or(1.0, |row| row.base_p50)
}

fn reached(record: &Record, from: f64, to: f64) -> f64 {
    let rows = record.between(from, to);
    let is_there = |second: &[Row]| goodput(second) >= 0.9;
    let at = rows.windows(10).position(is_there);
    at.map_or(f64::INFINITY, |at| at as f64 * ROW.as_secs_f64())
}

fn sum(rows: &[Row], of: impl Fn(&Row) -> u32) -> f64 {
    rows.iter().map(|row| f64::from(of(row))).sum()
}

fn highest(rows: &[Row], of: impl Fn(&Row) -> f64) -> f64 {
    rows.iter().map(of).fold(f64::NEG_INFINITY, f64::max)
}
