//! Slots of the machine that the stories held: what makes the suite long.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use crate::build::TestBinary;

/// Slots of the machine, as `stories/src/machine.rs` has them.
const SLOTS: f64 = 5.0;
/// Tests in the summary.
const LONGEST: usize = 20;

/// File to which each story writes the slots that it held: a line of slots, seconds, binary and test.
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
    let mut by_test: BTreeMap<&str, f64> = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.splitn(3, ' ');
        let mut number = || words.next()?.parse::<f64>().ok();
        let (Some(slots), Some(seconds)) = (number(), number()) else { continue };
        *by_test.entry(words.next().unwrap_or_default()).or_default() += slots * seconds;
    }
    let total: f64 = by_test.values().sum();
    let mut tests: Vec<_> = by_test.into_iter().collect();
    tests.sort_by(|one, other| other.1.total_cmp(&one.1));
    let longest = tests.iter().take(LONGEST);
    let longest: Vec<String> =
        longest.map(|(test, seconds)| format!("{test} {seconds:.0}s")).collect();
    let used = 100.0 * total / (SLOTS * elapsed.max(0.001));
    format!("slots of the machine: {used:.0} % used; slots times seconds: {}", longest.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tests_that_held_most_come_first() {
        let text = "1 10.0 a one\n4 5.0 a two\nbroken\n1 2.5 a one\n";
        assert_eq!(
            summary(text, 10.0),
            "slots of the machine: 65 % used; slots times seconds: a two 20s, a one 12s"
        );
    }
}
