//! Measures how long a start takes to open a spill: `opening DIRECTORY MIB`. The directory is
//! created, filled with packs of 1 KB, and left for the next run, which only opens it.
//!
//! Run it twice, with `echo 3 > /proc/sys/vm/drop_caches` in between: after a crash of the machine,
//! a start finds nothing in memory.

use std::path::PathBuf;
use std::time::Instant;

use spillway_spill::disk::RealDisk;
use spillway_spill::{Directory, Limits, count, open};

const PACK_BYTES: usize = 1000;
const GROUP: usize = 64;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let directory = PathBuf::from(arguments.next().expect("a directory"));
    let mib: u64 = arguments.next().expect("how many MiB").parse().expect("a number");
    let limits = Limits { bytes_max: u64::MAX, segment_bytes: 64 << 20 };
    let began = Instant::now();
    let directory = Directory::take(&directory).expect("a directory of ours");
    let (index, mut writer) = open(directory, Box::new(RealDisk), limits, 0).expect("it opens");
    println!("opened {} MiB in {:?}", index.bytes() >> 20, began.elapsed());
    count(&index);
    println!("counted {} webhooks after {:?}", index.webhooks(), began.elapsed());
    let packs = vec![(vec![7; PACK_BYTES], 1); GROUP];
    while index.bytes() < mib << 20 {
        writer.append(&packs).expect("it is written");
    }
}
