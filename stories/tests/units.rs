//! The systemd units as checked by systemd: they contain no mistakes and expose little.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use stories::binaries;
use tempfile::TempDir;

/// Limit for `systemd-analyze security` in tenths: 1.5 of 10.
const EXPOSURE_MAX: &str = "15";

/// The units with the paths of our built binaries, because systemd checks that they exist.
fn units() -> (TempDir, Vec<PathBuf>) {
    let directory = tempfile::tempdir().expect("make a directory");
    let mut units = Vec::new();
    for entry in fs::read_dir(binaries::repository().join("ops/systemd")).expect("ops/systemd") {
        let path = entry.expect("an entry").path();
        let mut unit = fs::read_to_string(&path).expect("a unit");
        for name in ["request-receiver", "downstreamer", "kafka_producer", "archiver", "spillway"] {
            let built = binaries::ours(name).display().to_string();
            unit = unit.replace(&format!("/usr/bin/{name}"), &built);
        }
        let start = binaries::repository().join("ops/redis-start");
        unit = unit.replace("/usr/lib/spillway/redis-start", &start.display().to_string());
        let copy = directory.path().join(path.file_name().expect("a name"));
        fs::write(&copy, unit).expect("write a unit");
        units.push(copy);
    }
    (directory, units)
}

fn analyze(directory: &Path, arguments: &[&str], units: &[PathBuf]) -> (bool, String) {
    let output = Command::new("systemd-analyze")
        .args(arguments)
        .args(units)
        // Our units take precedence over installed ones.
        .env("SYSTEMD_UNIT_PATH", format!("{}:", directory.display()))
        .output()
        .expect("systemd-analyze is missing; install it with: apt-get install systemd");
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

fn is_service(unit: &Path) -> bool {
    unit.extension().is_some_and(|kind| kind == "service")
}

fn verify(directory: &Path, units: &[PathBuf]) -> (bool, String) {
    analyze(directory, &["verify", "--man=no"], units)
}

#[test]
fn systemd_finds_no_mistake_in_the_units() {
    let (directory, units) = units();
    assert_eq!(verify(directory.path(), &units), (true, String::new()));
    // A mistake is reported.
    let receiver = directory.path().join("spillway-receiver.service");
    let spoilt = fs::read_to_string(&receiver).unwrap().replace("WatchdogSec=", "WatchdogSecs=");
    fs::write(&receiver, spoilt).unwrap();
    assert!(verify(directory.path(), &units).1.contains("WatchdogSecs"));
}

/// By default systemd gives up after five starts in ten seconds. A unit would then stay down after
/// a full disk is fixed.
#[test]
fn what_is_always_started_again_is_so_without_end() {
    let (_directory, units) = units();
    let mut endless = 0;
    for unit in units.iter().filter(|unit| is_service(unit)) {
        let text = fs::read_to_string(unit).expect("a unit");
        if text.lines().any(|line| line == "Restart=always") {
            let is_endless = text.lines().any(|line| line == "StartLimitIntervalSec=0");
            assert!(is_endless, "systemd gives up on {}", unit.display());
            endless += 1;
        }
    }
    assert_eq!(endless, 8, "services that are always started again");
}

/// Webhook ids, event ages and waiting times depend on the clock.
#[test]
fn every_service_of_a_cell_starts_after_the_clock_is_right() {
    let (_directory, units) = units();
    let mut ordered = 0;
    for unit in units.iter().filter(|unit| is_service(unit)) {
        let text = fs::read_to_string(unit).expect("a unit");
        let after = text.lines().filter_map(|line| line.strip_prefix("After="));
        let is_ordered = after.flat_map(str::split_whitespace).any(|one| one == "time-sync.target");
        assert!(is_ordered, "{} may start before the clock is right", unit.display());
        ordered += 1;
    }
    assert_eq!(ordered, 9, "services");
}

/// A directory that a service creates is removed when it stops, and nginx may not enter Redis'
/// directory.
#[test]
fn a_unix_socket_for_nginx_is_advised_where_it_lasts_and_nginx_reaches_it() {
    for file in
        ["ops/systemd/spillway-receiver.socket", "ops/nginx/spillway.conf", "docs/install.md"]
    {
        let text = fs::read_to_string(binaries::repository().join(file)).expect(file);
        let words = text.split(|c: char| c.is_whitespace() || "=:;`".contains(c));
        let sockets: Vec<&str> =
            words.filter(|word| word.starts_with("/run/") && word.ends_with(".sock")).collect();
        assert_eq!(sockets, ["/run/spillway-receiver.sock"], "{file}");
    }
}

/// All services run in the archiver's group, or read a file of settings that may name its bucket. Only the archiver
/// and the purge need it.
#[test]
fn only_the_archiver_has_access_to_the_archive() {
    let (_directory, units) = units();
    let mut closed = 0;
    for unit in units.iter().filter(|unit| is_service(unit)) {
        let needs_it = ["spillway-archiver.service", "spillway-forget.service"];
        if needs_it.iter().any(|name| unit.ends_with(name)) {
            continue;
        }
        let text = fs::read_to_string(unit).expect("a unit");
        let words = |key: &str| {
            let lines = text.lines().filter_map(|line| line.strip_prefix(key));
            lines.flat_map(str::split_whitespace).collect::<Vec<_>>()
        };
        let hidden = words("InaccessiblePaths=");
        for file in ["archiver.env", "archive-keys", "archive-account.json"] {
            let is_hidden = hidden.contains(&"-/etc/spillway")
                || hidden.contains(&format!("-/etc/spillway/{file}").as_str());
            assert!(is_hidden, "{} sees {file}", unit.display());
        }
        let unset = words("UnsetEnvironment=");
        for name in ["AWS_SECRET_ACCESS_KEY", "AZURE_STORAGE_ACCOUNT_KEY", "GOOGLE_SERVICE_ACCOUNT"]
        {
            assert!(unset.contains(&name), "{} has {name}", unit.display());
        }
        closed += 1;
    }
    assert_eq!(closed, 7, "services");
}

#[test]
fn no_unit_is_more_exposed_than_a_little() {
    let (directory, units) = units();
    let threshold = format!("--threshold={EXPOSURE_MAX}");
    let arguments = ["security", "--offline=true", "--no-pager", &threshold];
    for unit in units.iter().filter(|unit| is_service(unit)) {
        let (is_good, said) = analyze(directory.path(), &arguments, std::slice::from_ref(unit));
        assert!(is_good, "{said}");
        println!("{}", said.lines().last().unwrap_or_default());
    }
}

/// When cores are short, the drain comes before intake: with equal weights a backlog grows although the machine could take
/// what is offered (docs/sizing.md).
#[test]
fn the_downstreamer_weighs_four_times_as_much_as_what_feeds_it() {
    let weight = |unit: &str| {
        let file = binaries::repository().join(format!("ops/systemd/{unit}.service"));
        let text = fs::read_to_string(file).expect(unit);
        let set = text.lines().find_map(|line| line.strip_prefix("CPUWeight="));
        set.map_or(100, |weight| weight.parse::<u64>().expect("a weight"))
    };
    for unit in ["spillway-downstreamer", "spillway-downstreamer@"] {
        assert_eq!(weight(unit), 4 * weight("spillway-receiver"), "{unit}");
        assert_eq!(weight(unit), 4 * weight("spillway-redis"), "{unit}");
    }
}
