//! `simulate`: plays scenarios with every algorithm and reports the results.

use std::path::PathBuf;

use clap::Parser;
use simulator::algorithm::Kind;
use simulator::report::{CURVES_HEAD, FIGURES_HEAD, Played};
use simulator::scenario::Scenario;

#[derive(Parser)]
#[command(about = "Plays backends against limiters, in virtual time")]
struct Arguments {
    /// Only scenarios whose name contains one of these.
    names: Vec<String>,
    /// Only the downstreamer's own algorithm.
    #[arg(long)]
    ours: bool,
    /// Number of seeds for each scenario, instead of those in its file.
    #[arg(long)]
    seeds: Option<u64>,
    /// Directory for figures.csv and curves.csv.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Directory of the scenarios.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios"))]
    scenarios: PathBuf,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let names = &arguments.names;
    let (mut figures, mut curves) = (FIGURES_HEAD.to_owned(), CURVES_HEAD.to_owned());
    for mut scenario in Scenario::read_all(&arguments.scenarios)? {
        if !names.is_empty() && !names.iter().any(|name| scenario.name.contains(name)) {
            continue;
        }
        if let Some(seeds) = arguments.seeds {
            scenario.seeds = (1..=seeds).collect();
        }
        println!("{}: {}", scenario.name, scenario.about);
        for kind in if arguments.ours { &Kind::ALL[..1] } else { &Kind::ALL } {
            let played = Played::play(&scenario, *kind);
            for finding in played.findings() {
                let word = if finding.holds { "    " } else { "miss" };
                let (what, range, worst) = (finding.what, finding.range, finding.worst);
                println!("  {word} {:10} {what:36} {range:>12} {worst:9.3}", kind.name());
            }
            figures += &played.figures_csv();
            curves += &played.curves_csv();
        }
    }
    if let Some(out) = arguments.out {
        std::fs::create_dir_all(&out)?;
        std::fs::write(out.join("figures.csv"), figures)?;
        std::fs::write(out.join("curves.csv"), curves)?;
    }
    Ok(())
}
