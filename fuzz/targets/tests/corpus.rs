//! Runs the committed corpus through every target, so that bugs found once are found again.
//!
//! `fuzz/corpus/TARGET.txt` holds one input on each line: its name, a space, and its bytes in base64.

use std::fs;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

#[test]
fn everything_in_the_corpus_passes_its_target() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../corpus");
    for (name, target) in fuzz_targets::ALL {
        let text = fs::read_to_string(corpus.join(format!("{name}.txt")));
        let text = text.expect("a target has a corpus");
        assert!(!text.is_empty(), "{name} has an empty corpus");
        for line in text.lines() {
            let (input, bytes) = line.split_once(' ').expect("a name and bytes");
            // The output of a failed test names the input.
            println!("{name} {input}");
            target(&STANDARD.decode(bytes).expect("base64"));
        }
    }
}
