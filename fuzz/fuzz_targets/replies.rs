//! Replies of Redis to an append and a settlement: `fuzz/targets/src/replies.rs`, driven by
//! libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_targets::replies::run(data));
