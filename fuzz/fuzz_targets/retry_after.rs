//! A Retry-After header: `fuzz/targets/src/retry_after.rs`, driven by libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_targets::retry_after::run(data));
