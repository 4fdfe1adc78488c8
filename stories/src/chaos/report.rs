//! Results of a run of episodes, as tables.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use super::episode::{Felt, Shown};
use super::fault::Kind;
use crate::measure::percentile;
use crate::settlements::Duplicates;

/// All episodes of a run.
#[derive(Debug, Default)]
pub struct Run {
    /// Results of each episode.
    pub shown: Vec<Shown>,
}

impl Run {
    /// Number of faults made; faults made together count separately.
    pub fn faults(&self) -> usize {
        self.felt().map(|felt| felt.kinds.len()).sum()
    }

    /// Settlements that were sent again.
    pub fn duplicates(&self) -> Duplicates {
        let all = self.shown.iter().map(|shown| shown.duplicates);
        all.fold(Duplicates::default(), Duplicates::and)
    }

    /// The most important figures.
    pub fn summary(&self) -> String {
        let sum = |of: fn(&Shown) -> usize| self.shown.iter().map(of).sum::<usize>();
        let stored = sum(|shown| shown.delivered.stored);
        let repeats = sum(|shown| shown.delivered.repeats);
        let recoveries: Vec<Duration> = self.felt().map(|felt| felt.recovery).collect();
        let produced = |of: fn(&crate::exactly_once::Once) -> usize| {
            self.shown.iter().filter_map(|shown| shown.produced.as_ref()).map(of).sum::<usize>()
        };
        let duplicates = self.duplicates();
        format!(
            "{} faults in {} cells. {} webhooks sent in {} attempts of which {} had an unknown end; \
             {stored} answered 200. To the backend: {} lost, {} invented, {} altered, {} out of order; \
             {repeats} repeated ({} of a million), {} may have been. To Kafka: {} records; {} lost, \
             {} repeated, {} invented, {} altered, {} out of order. {} refused for good by the \
             backend, each replayed. {} settlements sent again later ({} the first of a leader, {} \
             that move webhooks into lanes, {} that settle webhooks in lanes): {} refused, {} known, {} \
             applied for the first time, {} applied twice; {} settlements refused because they came \
             late. {} ends of a process that nobody brought about. Recovery: \
             p50 {:.1?}, p99 {:.1?}, longest {:.1?}.",
            self.faults(),
            self.shown.len(),
            sum(|shown| shown.delivered.sent),
            self.felt().map(|felt| felt.refused + felt.unanswered).sum::<usize>() + stored,
            sum(|shown| shown.delivered.unknown),
            sum(|shown| shown.delivered.lost),
            sum(|shown| shown.delivered.invented),
            sum(|shown| shown.delivered.altered),
            sum(|shown| shown.delivered.disordered),
            repeats * 1_000_000 / stored.max(1),
            sum(|shown| shown.repeats_max),
            produced(|once| once.records),
            produced(|once| once.lost),
            produced(|once| once.repeated),
            produced(|once| once.invented),
            produced(|once| once.altered),
            produced(|once| once.disordered),
            sum(|shown| shown.poisoned),
            duplicates.sent,
            duplicates.firsts,
            duplicates.moves,
            duplicates.chunks,
            duplicates.refused,
            duplicates.known,
            duplicates.applied,
            duplicates.applied_twice,
            duplicates.late,
            sum(|shown| shown.ended.len()),
            percentile(&recoveries, 0.5),
            percentile(&recoveries, 0.99),
            percentile(&recoveries, 1.0),
        )
    }

    /// Table with a row for each kind of fault: how often it was made, and its effect. A fault of
    /// two kinds is in both rows.
    pub fn table(&self) -> String {
        let mut table = String::from(
            "| fault | times | alone | 503 a time | unanswered a time | back after, median | longest |\n\
             |---|---|---|---|---|---|---|\n",
        );
        for kind in Kind::ALL {
            let felt: Vec<&Felt> = self.felt().filter(|felt| felt.kinds.contains(kind)).collect();
            let alone: Vec<&Felt> = felt.iter().copied().filter(|f| f.kinds.len() == 1).collect();
            if felt.is_empty() {
                continue;
            }
            // The effect of a kind is taken from faults made alone, if there are any.
            let telling = if alone.is_empty() { &felt } else { &alone };
            let recoveries: Vec<Duration> = telling.iter().map(|felt| felt.recovery).collect();
            let mean = |of: fn(&Felt) -> usize| {
                telling.iter().map(|felt| of(felt)).sum::<usize>() as f64 / telling.len() as f64
            };
            writeln!(
                table,
                "| {} | {} | {} | {:.1} | {:.1} | {:.1?} | {:.1?} |",
                kind.says(),
                felt.len(),
                alone.len(),
                mean(|felt| felt.refused),
                mean(|felt| felt.unanswered),
                percentile(&recoveries, 0.5),
                percentile(&recoveries, 1.0),
            )
            .expect("a string takes everything");
        }
        table
    }

    /// Largest resident memory of each process, in MiB.
    pub fn memory(&self) -> String {
        let mut largest: BTreeMap<&str, u64> = BTreeMap::new();
        for (name, bytes) in self.shown.iter().flat_map(|shown| &shown.memory) {
            let entry = largest.entry(name).or_default();
            *entry = (*bytes).max(*entry);
        }
        let each = largest.iter().map(|(name, bytes)| format!("{name} {} MiB", bytes >> 20));
        each.collect::<Vec<_>>().join(", ")
    }

    fn felt(&self) -> impl Iterator<Item = &Felt> {
        self.shown.iter().flat_map(|shown| &shown.felt)
    }
}
