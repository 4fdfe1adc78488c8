//! Settings by flag, environment and file: `fuzz/targets/src/settings.rs`, driven by libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_targets::settings::run(data));
