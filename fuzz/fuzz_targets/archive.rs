//! Bytes that may be an object of the archive: `fuzz/targets/src/archive.rs`, driven by libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_targets::archive::run(data));
