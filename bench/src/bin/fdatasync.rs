//! Measures the cost of the disk: an append and its fdatasync, as in Redis with `appendfsync
//! always`. No durable answer can be faster, so every benchmark result contains this figure.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Parser;
use serde::Serialize;

/// Sizes of a small append, a usual pack of webhooks, and the largest pack.
const APPEND_BYTES: [usize; 3] = [4 << 10, 64 << 10, 1 << 20];
/// First appends, which are not measured: a new file allocates more in them than later.
const WARM_UP: usize = 10;

/// Measures write + fdatasync of appends of 4 KB, 64 KB and 1 MB.
#[derive(Parser)]
struct Options {
    /// Directory on the disk to measure.
    directory: PathBuf,
    /// Appends per size. The file grows to this many MB and is then deleted.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(200..=10_000))]
    samples: u32,
    /// Prints JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Figures {
    bytes: usize,
    samples: usize,
    p50_us: u128,
    p99_us: u128,
    longest_us: u128,
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let figures = APPEND_BYTES
        .iter()
        .map(|&bytes| measure(&options.directory, bytes, options.samples as usize))
        .collect::<anyhow::Result<Vec<Figures>>>()?;
    if options.json {
        println!("{}", serde_json::to_string(&figures)?);
        return Ok(());
    }
    println!("append + fdatasync in {}", options.directory.display());
    for figure in figures {
        println!(
            "{:>5} KB   median {:>6} us   p99 {:>6} us   longest {:>6} us",
            figure.bytes >> 10,
            figure.p50_us,
            figure.p99_us,
            figure.longest_us
        );
    }
    Ok(())
}

fn measure(directory: &Path, bytes: usize, samples: usize) -> anyhow::Result<Figures> {
    let path = directory.join(format!("fdatasync-{}-{bytes}", std::process::id()));
    let mut file =
        File::create_new(&path).with_context(|| format!("cannot create {}", path.display()))?;
    let times = append(&mut file, bytes, samples);
    std::fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
    let mut times = times.with_context(|| format!("cannot append to {}", path.display()))?;
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100].as_micros();
    Ok(Figures { bytes, samples: times.len(), p50_us: at(50), p99_us: at(99), longest_us: at(100) })
}

fn append(file: &mut File, bytes: usize, samples: usize) -> std::io::Result<Vec<Duration>> {
    // Bytes that neither a file system nor a disk can compress.
    let mut state = 0x9E37_79B9_u32;
    let block: Vec<u8> = (0..bytes)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        })
        .collect();
    let mut times = Vec::with_capacity(samples);
    for sample in 0..WARM_UP + samples {
        let start = Instant::now();
        file.write_all(&block)?;
        file.sync_data()?;
        if sample >= WARM_UP {
            times.push(start.elapsed());
        }
    }
    Ok(times)
}
