//! Slots of the machine that the stories held: what makes the suite long.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use crate::build::TestBinary;

/// Slots of the machine, as `stories/src/machine.rs` has them.
const SLOTS: f64 = 7.0;
/// Tests in the summary.
const LONGEST: usize = 20;

/// File to which each story writes the slots that it held: a line of slots, seconds,
/// seconds of processor time, and test.
#[derive(Debug)]
pub(crate) struct SlotLog(Option<PathBuf>);

impl SlotLog {
    /// Begins an empty log, beside the story's directory.
    pub(crate) fn new(story: Option<&TestBinary>) -> Self {
        let directory = story.and_then(|story| story.path.parent()?.parent());
        let log = directory.map(|directory| directory.join("stories-slots.log"));
        if let Some(log) = &log {
            fs::remove_file(log).ok();
        }
        Self(log)
    }

    /// Returns the use of the slots over `elapsed`, and the tests that took most.
    pub(crate) fn summary(&self, elapsed: Duration) -> String {
        let text = self.0.as_ref().and_then(|log| fs::read_to_string(log).ok());
        summary(&text.unwrap_or_default(), elapsed.as_secs_f64())
    }
}

fn summary(text: &str, elapsed: f64) -> String {
    let mut by_test: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.splitn(4, ' ');
        let mut number = || words.next()?.parse::<f64>().ok();
        let (Some(slots), Some(seconds), Some(processor)) = (number(), number(), number()) else {
            continue;
        };
        let test = by_test.entry(words.next().unwrap_or_default()).or_default();
        test.0 += slots * seconds;
        test.1 += processor;
    }
    let total: f64 = by_test.values().map(|(slots, _)| slots).sum();
    let mut tests: Vec<_> = by_test.into_iter().collect();
    tests.sort_by(|(_, one), (_, other)| other.0.total_cmp(&one.0));
    let longest = tests.iter().take(LONGEST);
    let longest: Vec<String> = longest
        .map(|(test, (slots, processor))| format!("{test} {slots:.0} ({processor:.0})"))
        .collect();
    let used = 100.0 * total / (SLOTS * elapsed.max(0.001));
    format!(
        "slots of the machine: {used:.0} % used; slots times seconds (seconds of processor time): {}",
        longest.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tests_that_held_most_come_first() {
        let text = "1 10.0 2.0 a::one\n4 5.0 9.6 a::two\nbroken\n1 25.0 0.4 a::one\n";
        assert_eq!(
            summary(text, 10.0),
            "slots of the machine: 79 % used; slots times seconds (seconds of processor time): a::one \
             35 (2), a::two 20 (10)"
        );
    }
}
