//! Measures if the time that a refusal takes reveals how much of a signature was right.
//!
//! The method is that of dudect (O. Reparaz, J. Balasch, I. Verbauwhede, "Dude, is my code constant
//! time?", 2017). Two classes of input come in random order, and Welch's t-test compares the times.
//! The slowest part is cut off at several places. Signatures of the first class share 31 of 32
//! bytes with the right one, those of the second are random. The same is measured for a comparison
//! that stops at the first difference: if the measurement did not detect that one, its result for
//! the other would mean nothing.

mod samples;
mod welch;

use std::fmt::Write;
use std::process::ExitCode;

use samples::{Check, take};
use welch::{Finding, judge};

/// Number of measurements, unless the only argument gives another one.
const COUNT: usize = 2_000_000;
/// Limit of |t|. Below it, no difference can be seen.
const T_MAX: f64 = 4.5;

fn main() -> ExitCode {
    let count = std::env::args().nth(1).map_or(COUNT, |text| text.parse().expect("a number"));
    let ours = judge(&take(Check::Ours, count));
    let early = judge(&take(Check::StopsEarly, count));
    let page = page(count, &ours, &early);
    print!("{page}");
    if let Some(directory) = std::env::var_os("RESULTS") {
        let path = std::path::Path::new(&directory).join("timing.md");
        std::fs::write(path, page).expect("write the result");
    }
    if early.t.abs() < T_MAX {
        eprintln!("the comparison that stops early was not seen: nothing can be said here");
        return ExitCode::FAILURE;
    }
    if ours.t.abs() < T_MAX { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn page(count: usize, ours: &Finding, early: &Finding) -> String {
    let mut page = format!(
        "# Whether the time of a refusal tells a signature\n\n`make timing`: {count} refusals of each check, \
         half of them of signatures that share 31 of 32 bytes with the right one, half of random ones, in random \
         order; Welch's t over what each took, the largest of {} croppings (dudect). Below {T_MAX}, no \
         difference is seen.\n\n| check | largest abs(t) | mean, 31 bytes right | mean, random | kept of all |\n\
         |---|---|---|---|---|\n",
        welch::CROPPINGS
    );
    for (name, finding) in
        [("`Secrets::verify`", ours), ("one that stops at the first difference", early)]
    {
        let Finding { t, means, kept } = finding;
        let kept = 100.0 * *kept as f64 / count as f64;
        writeln!(
            page,
            "| {name} | {:.2} | {:.1} ns | {:.1} ns | {kept:.1} % |",
            t.abs(),
            means[0],
            means[1]
        )
        .expect("a string");
    }
    page
}
