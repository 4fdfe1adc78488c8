//! Bytes that may be a pack: `fuzz/targets/src/pack.rs`, driven by libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_targets::pack::run(data));
