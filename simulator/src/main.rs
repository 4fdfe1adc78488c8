//! `simulate`: every scenario with every algorithm.
fn main() -> anyhow::Result<()> {
    use simulator::{algorithm::Kind, run::run, scenario::Scenario};
    let args: Vec<String> = std::env::args().skip(1).collect();
    let trace = args.iter().any(|a| a.starts_with("-t"));
    let names: Vec<&String> = args.iter().filter(|a| !a.starts_with("-t") && *a != "-a").collect();
    let kinds: &[Kind] = if args.iter().any(|a| a == "-a") { &Kind::ALL } else { &Kind::ALL[..1] };
    let (mut bad, mut all) = (0, 0);
    for mut s in
        Scenario::read_all(std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios")))?
    {
        if !names.is_empty() && !names.iter().any(|n| s.name.contains(*n)) {
            continue;
        }
        if let Ok(n) = std::env::var("SEEDS") {
            s.seeds = (1..=n.parse().unwrap()).collect();
        }
        for kind in kinds {
            let t = std::time::Instant::now();
            let runs: Vec<_> =
                s.seeds.iter().map(|seed| run(&s, &mut *kind.build(&s.client), *seed)).collect();
            println!("{} {} ({:.1?})", s.name, kind.name(), t.elapsed());
            for e in &s.expectations {
                let v: Vec<f64> = runs.iter().map(|r| e.measure(r)).collect();
                let ok = v.iter().all(|v| e.holds(*v));
                all += 1;
                if !ok {
                    bad += 1;
                }
                println!(
                    "  {} {:24} {:6}-{:6} {:14} {}",
                    if ok { "ok  " } else { "FAIL" },
                    e.figure.name(),
                    e.from,
                    e.to,
                    e.range(),
                    if v.len() > 8 {
                        let mut w = v.clone();
                        w.sort_by(f64::total_cmp);
                        let n = w.len();
                        format!(
                            "min {:.3} p10 {:.3} p50 {:.3} p90 {:.3} max {:.3}",
                            w[0],
                            w[n / 10],
                            w[n / 2],
                            w[n * 9 / 10],
                            w[n - 1]
                        )
                    } else {
                        v.iter().map(|v| format!("{v:.3}")).collect::<Vec<_>>().join(" ")
                    }
                );
            }
            if trace {
                for (i, r) in runs
                    [args.iter().find_map(|a| a.strip_prefix("-t")?.parse().ok()).unwrap_or(0usize)]
                .rows
                .iter()
                .enumerate()
                {
                    println!(
                        "{:.1} limit {} inflight {} done {} 429 {} fail {} bdp {:.1}",
                        i as f64 / 10.,
                        r.limit,
                        r.in_flight,
                        r.done,
                        r.overloaded,
                        r.failed,
                        r.capacity * r.base
                    );
                }
            }
        }
    }
    println!("{bad} of {all} bad");
    Ok(())
}
