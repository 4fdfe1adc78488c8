//! Bytes of a request, processed by the receiver's own handler: `fuzz/targets/src/http.rs`, driven
//! by libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_targets::http::run(data));
