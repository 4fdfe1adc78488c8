#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_targets::retry_after::run(data));
