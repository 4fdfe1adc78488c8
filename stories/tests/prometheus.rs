//! The files for Prometheus and Grafana: promtool accepts them, each alert passes its unit test and
//! has its section in the docs, and no file uses a metric that no process shows.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use serde_json::Value;
use stories::binaries::repository;
use stories::machine;
use stories::prometheus::promtool;

const TESTS: [&str; 2] = ["alerts.test.yml", "silent.test.yml"];

fn directory() -> PathBuf {
    repository().join("ops/prometheus")
}

fn read(path: &str) -> String {
    fs::read_to_string(repository().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn expect_good(arguments: &[&str]) {
    let _slots = machine::shared();
    let output = promtool(&directory(), arguments);
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "promtool {arguments:?} says:\n{said}");
}

#[test]
fn promtool_takes_the_files() {
    expect_good(&["check", "config", "prometheus.yml"]);
    expect_good(&["check", "rules", "recording.yml", "alerts.yml"]);
}

#[test]
fn each_alert_is_silent_in_the_calm_and_fires_in_its_fault() {
    let tested: String = TESTS.map(|name| read(&format!("ops/prometheus/{name}"))).concat();
    for alert in alerts() {
        assert!(
            tested.contains(&format!("alertname=\"{}\"", alert.name)),
            "no test of {}",
            alert.name
        );
    }
    expect_good(&[&["test", "rules"][..], &TESTS].concat());
}

#[test]
fn each_alert_says_what_to_do_and_where_to_read_on() {
    let page = read("docs/alerts/README.md");
    let sections: Vec<&str> = page.split("\n## ").skip(1).collect();
    let names: Vec<&str> = sections.iter().filter_map(|section| section.lines().next()).collect();
    let alerts = alerts();
    assert_eq!(names, alerts.iter().map(|alert| alert.name.as_str()).collect::<Vec<_>>());
    for (alert, section) in alerts.iter().zip(sections) {
        let Alert { name, text } = alert;
        let link = format!("docs/alerts/README.md#{}", name.to_lowercase());
        assert!(text.contains(&format!("runbook_url: {link}\n")), "{name} has no link {link}");
        for field in ["severity: ", "summary: ", "description: ", "Next"] {
            assert!(text.contains(field), "{name} has no {field:?}");
        }
        for part in ["**Means**", "**Your users see**", "**Do**", "```"] {
            assert!(section.contains(part), "{name} has no {part}");
        }
    }
}

#[test]
fn what_alerts_and_dashboard_ask_for_exists() {
    let shown = read("docs/monitoring.md");
    let shown = shown.lines().filter_map(|line| line.strip_prefix("| `"));
    let shown: BTreeSet<&str> = shown.filter_map(|line| line.split(['{', '`']).next()).collect();
    let rules = read("ops/prometheus/recording.yml") + &read("ops/prometheus/alerts.yml");
    let recorded = rules.lines().filter_map(|line| line.trim().strip_prefix("- record: "));
    let recorded: BTreeSet<&str> = recorded.collect();
    let dashboard: Value = serde_json::from_str(&read(DASHBOARD)).expect("the dashboard is JSON");
    let queries: Vec<String> = panels(&dashboard).flat_map(queries).collect();
    assert!(queries.len() > 20, "{} queries", queries.len());
    for text in queries.iter().chain([&rules]) {
        for name in names(text) {
            let family =
                ["_bucket", "_count", "_sum"].iter().find_map(|end| name.strip_suffix(end));
            let is_there = |name: &str| shown.contains(name) || recorded.contains(name);
            assert!(is_there(name) || family.is_some_and(is_there), "{name} is nowhere: {text}");
        }
    }
}

#[test]
fn the_dashboard_names_its_units_and_leaves_the_data_source_open() {
    let dashboard: Value = serde_json::from_str(&read(DASHBOARD)).expect("the dashboard is JSON");
    assert!(dashboard["schemaVersion"].as_u64() >= Some(36), "an old schema");
    assert!(dashboard["id"].is_null(), "an id of somebody's Grafana");
    let variables = dashboard["templating"]["list"].as_array().expect("variables");
    assert!(
        variables.iter().any(|one| one["type"] == "datasource" && one["query"] == "prometheus")
    );
    let mut ids = BTreeSet::new();
    let mut places: Vec<[u64; 4]> = Vec::new();
    for panel in panels(&dashboard) {
        let title = panel["title"].as_str().expect("a title");
        assert!(ids.insert(panel["id"].as_u64()), "{title} has the id of another");
        let place =
            ["x", "y", "w", "h"].map(|key| panel["gridPos"][key].as_u64().expect("a place"));
        assert!(place[0] + place[2] <= 24, "{title} is too wide");
        assert!(places.iter().all(|other| !overlap(place, *other)), "{title} overlaps another");
        places.push(place);
        if panel["type"] == "row" {
            continue;
        }
        let text = |value: &Value| value.as_str().is_some_and(|text| !text.is_empty());
        assert!(text(&panel["description"]), "{title} has no description");
        assert!(text(&panel["fieldConfig"]["defaults"]["unit"]), "{title} has no unit");
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
        assert!(queries(panel).next().is_some(), "{title} asks nothing");
    }
}

const DASHBOARD: &str = "ops/grafana/spillway.json";

fn panels(dashboard: &Value) -> impl Iterator<Item = &Value> {
    dashboard["panels"].as_array().expect("panels").iter()
}

fn queries(panel: &Value) -> impl Iterator<Item = String> {
    let targets = panel["targets"].as_array().into_iter().flatten();
    targets.map(|target| target["expr"].as_str().expect("a query").to_owned())
}

fn overlap([x, y, w, h]: [u64; 4], [x2, y2, w2, h2]: [u64; 4]) -> bool {
    x < x2 + w2 && x2 < x + w && y < y2 + h2 && y2 < y + h
}

/// Metric names in a text: ours and those of processes, without names of files or Redis keys.
fn names(text: &str) -> impl Iterator<Item = &str> {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == ':';
    let words = text.split(move |letter| !is_part(letter));
    let begins = ["spillway_", "spillway:", "process_"];
    let is_metric = move |word: &&str| begins.iter().any(|begin| word.starts_with(begin));
    words.filter(is_metric).filter(|word| !word.ends_with(':'))
}

/// One alert of the shipped file.
struct Alert {
    name: String,
    text: String,
}

fn alerts() -> Vec<Alert> {
    let file = read("ops/prometheus/alerts.yml");
    let texts = file.split("- alert: ").skip(1);
    let alert = |text: &str| {
        let (name, text) = text.split_once('\n').expect("lines after the name");
        Alert { name: name.to_owned(), text: text.to_owned() }
    };
    texts.map(alert).collect()
}
