//! A triggered-at header: `fuzz/targets/src/times.rs`, driven by libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_targets::times::run(data));
