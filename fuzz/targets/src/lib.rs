//! Fuzz targets. Each one takes any bytes and panics if a property does not hold.
//!
//! `make fuzz` drives them with libFuzzer, `tests/corpus.rs` with the committed corpus, on a stable
//! toolchain. The properties are listed in the documentation of each target's module.

pub mod archive;
pub mod http;
pub mod pack;
#[path = "../../../kafka_producer/src/properties.rs"]
pub mod properties;
pub mod replies;
pub mod retry_after;
pub mod round_trip;
pub mod settings;
pub mod signed;
pub mod times;

use std::cell::RefCell;

use spillway_webhook::pack::{Packer, Records};

thread_local! {
    /// One packer for all packs, as in a batcher, because creating one costs more than a small
    /// pack.
    static PACKER: RefCell<Packer> = RefCell::default();
}

/// Function that takes any bytes.
pub type Target = fn(&[u8]);

/// Every target, by its name in `fuzz/corpus` and `fuzz/fuzz_targets`.
pub const ALL: [(&str, Target); 8] = [
    ("archive", archive::run),
    ("http", http::run),
    ("pack", pack::run),
    ("replies", replies::run),
    ("retry_after", retry_after::run),
    ("round_trip", round_trip::run),
    ("settings", settings::run),
    ("times", times::run),
];

/// Packs these records.
fn packed(records: &Records) -> Vec<u8> {
    PACKER.with_borrow_mut(|packer| packer.pack(records).to_vec())
}
