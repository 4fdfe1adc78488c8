//! Prints the style of each product crate as a table: `cargo run -p tidy`.

use std::collections::BTreeMap;

use tidy::{Facts, PRODUCT, bytes_of, opens_badly, sources, tracked};

fn main() {
    println!(
        "{:<17} {:>6} {:>8} {:>10} {:>10} {:>10} {:>11} {:>7} {:>8} {:>9}",
        "crate",
        "lines",
        "openers",
        "pub/k",
        "tuples/k",
        "casts/k",
        "asserts/k",
        "fields",
        "methods",
        "function"
    );
    for name in PRODUCT {
        row(name, &[name]);
    }
    row("all", &PRODUCT);
    let files = tracked();
    println!("\n{} tracked files of {:.2} MB", files.len(), bytes_of(&files) as f64 / 1e6);
}

/// Prints one line about some crates.
fn row(name: &str, crates: &[&str]) {
    let sources = sources(crates);
    let facts: Vec<&Facts> = sources.iter().map(|source| &source.facts).collect();
    let sum = |of: fn(&Facts) -> usize| facts.iter().map(|facts| of(facts)).sum::<usize>();
    let lines = sum(|facts| facts.lines);
    let per_thousand = |count: usize| count as f64 * 1000.0 / lines.max(1) as f64;
    let docs: Vec<&String> =
        facts.iter().flat_map(|facts| &facts.docs).map(|(_, text)| text).collect();
    let openers = docs.iter().filter(|text| opens_badly(text)).count();
    let structs = facts.iter().flat_map(|facts| &facts.structs).filter(|one| !one.is_settings);
    let mut methods: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for source in &sources {
        for (kind, count) in &source.facts.methods {
            *methods.entry((source.crate_name(), kind)).or_default() += count;
        }
    }
    let longest = facts.iter().flat_map(|facts| &facts.functions).map(|(_, lines)| *lines).max();
    println!(
        "{name:<17} {lines:>6} {:>6.1} % {:>10.1} {:>10.2} {:>10.2} {:>11.2} {:>7} {:>8} {:>9}",
        openers as f64 * 100.0 / docs.len().max(1) as f64,
        per_thousand(sum(|facts| facts.public)),
        per_thousand(sum(|facts| facts.tuple_lets)),
        per_thousand(sum(|facts| facts.casts)),
        per_thousand(sum(|facts| facts.assertions)),
        structs.map(|one| one.fields).max().unwrap_or(0),
        methods.values().max().unwrap_or(&0),
        longest.unwrap_or(0),
    );
}
