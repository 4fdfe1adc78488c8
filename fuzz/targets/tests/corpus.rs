//! Runs the committed corpus through every target, so that bugs found once are found again.
//!
//! `fuzz/corpus/TARGET.txt.zst` holds one input on each line: its name and a space, if it has one, and
//! its bytes in hexadecimal.

use std::fs::File;
use std::io;
use std::path::Path;

#[test]
fn everything_in_the_corpus_passes_its_target() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../corpus");
    for (name, target) in fuzz_targets::ALL {
        let file = File::open(corpus.join(format!("{name}.txt.zst")));
        let text = zstd::decode_all(file.expect("a target has a corpus"));
        let text = io::read_to_string(&*text.expect("decompress")).expect("text");
        assert!(!text.is_empty(), "{name} has an empty corpus");
        for line in text.lines() {
            // The output of a failed test shows the input.
            println!("{name} {line}");
            let digits = line.rsplit(' ').next().expect("a line has a word");
            let bytes = (0..digits.len()).step_by(2).map(|at| {
                u8::from_str_radix(&digits[at..at + 2], 16).expect("two hexadecimal digits")
            });
            target(&bytes.collect::<Vec<u8>>());
        }
    }
}
