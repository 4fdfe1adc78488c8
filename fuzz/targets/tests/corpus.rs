//! The committed corpus, through every target: what fuzzing found once stays found.

use std::fs;
use std::path::Path;

#[test]
fn everything_in_the_corpus_passes_its_target() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../corpus");
    for (name, target) in fuzz_targets::ALL {
        let files = fs::read_dir(corpus.join(name)).expect("a target has a corpus");
        let mut count = 0;
        for file in files {
            let file = file.expect("read the corpus").path();
            // Named in the output of a test that fails.
            println!("{}", file.display());
            target(&fs::read(file).expect("read the corpus"));
            count += 1;
        }
        assert!(count > 0, "{name} has an empty corpus");
    }
}
