//! Any webhook, packed and unpacked: `fuzz/targets/src/round_trip.rs`, driven by libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_targets::round_trip::run(data));
