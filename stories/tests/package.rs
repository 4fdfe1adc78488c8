//! Configuration of the packages, simulated in a directory. It runs their own scripts with
//! `/etc/spillway` elsewhere, and replaces programs that change the machine by ones that record
//! their calls. Also: the packages hold every file that a page names by its installed path.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use stories::binaries::repository;
use stories::page::links;
use tempfile::TempDir;

/// Name of a program, and the shell code that replaces it.
type Instead<'a> = (&'a str, &'a str);

/// Defaults: no file overrides, every user exists, and every unit is active.
const USUAL: [Instead; 5] = [
    ("dpkg-statoverride", "exit 1"),
    ("getent", "exit 0"),
    ("chown", "exit 0"),
    ("chgrp", "exit 0"),
    ("systemctl", "case $1 in show) echo active ;; esac"),
];

/// A simulated machine for these scripts.
struct Machine {
    directory: TempDir,
}

impl Machine {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("make a directory");
        for name in ["etc", "bin", "systemd"] {
            fs::create_dir(directory.path().join(name)).expect("make a directory");
        }
        let machine = Self { directory };
        machine.write("etc/spillway.env", 0o640, "");
        for instead in USUAL {
            machine.replace(instead);
        }
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, mode: u32, text: &str) {
        fs::write(self.path(name), text).expect("write a file");
        self.set_mode(name, mode);
    }

    fn set_mode(&self, name: &str, mode: u32) {
        fs::set_permissions(self.path(name), Permissions::from_mode(mode)).expect("set a mode");
    }

    fn mode(&self, name: &str) -> u32 {
        fs::metadata(self.path(name)).expect("it is there").permissions().mode() & 0o7777
    }

    /// Replaces a program: each call is recorded, then the code runs.
    fn replace(&self, (program, does): Instead) {
        let notes = self.path("notes").display().to_string();
        let script = format!("#!/bin/sh\necho \"{program} $*\" >>{notes}\n{does}\n");
        self.write(&format!("bin/{program}"), 0o755, &script);
    }

    /// Configures a package and returns the output.
    fn configure(&self, package: &str) -> Output {
        let script = repository().join("ops/debian").join(package).join("postinst");
        let script = fs::read_to_string(script).expect("read a postinst");
        let etc = self.path("etc").display().to_string();
        let script = script.replace("/etc/spillway", &etc);
        let script =
            script.replace("/run/systemd/system", &self.path("systemd").display().to_string());
        let path = format!("{}:/usr/bin:/bin", self.path("bin").display());
        let mut shell = Command::new("sh");
        let shell = shell.args(["-c", &script, "postinst", "configure"]).env("PATH", path);
        let output = shell.output().expect("run sh");
        assert!(output.status.success(), "{output:?}");
        output
    }

    /// True if a program was called like this, without regard to the directory.
    fn was_called(&self, call: &str) -> bool {
        let notes = fs::read_to_string(self.path("notes")).unwrap_or_default();
        let here = format!("{}/etc", self.directory.path().display());
        notes.lines().any(|line| line.replace(&here, "/etc/spillway") == call)
    }
}

#[test]
fn a_directory_and_a_secret_made_by_hand_are_opened_to_the_units() {
    let machine = Machine::new();
    machine.write("etc/client-secret", 0o600, "hush\n");
    machine.set_mode("etc", 0o700);
    machine.configure("spillway");
    assert_eq!((machine.mode("etc"), machine.mode("etc/client-secret")), (0o755, 0o640));
    assert!(machine.was_called("chown root:root /etc/spillway"));
    assert!(machine.was_called("chown root:spillway /etc/spillway/client-secret"));
    assert_eq!(fs::read_to_string(machine.path("etc/client-secret")).unwrap(), "hush\n");
}

#[test]
fn an_empty_file_for_the_secret_is_made() {
    let machine = Machine::new();
    machine.configure("spillway");
    assert_eq!(machine.mode("etc/client-secret"), 0o640);
    assert_eq!(fs::read_to_string(machine.path("etc/client-secret")).unwrap(), "");
}

#[test]
fn what_an_administrator_has_ordered_otherwise_stays() {
    let machine = Machine::new();
    machine.write("etc/client-secret", 0o600, "hush\n");
    machine.set_mode("etc", 0o750);
    machine.replace(("dpkg-statoverride", "exit 0"));
    machine.configure("spillway");
    assert_eq!((machine.mode("etc"), machine.mode("etc/client-secret")), (0o750, 0o600));
    assert!(!machine.was_called("chown root:root /etc/spillway"));
}

const SERVICES: [(&str, &str); 5] = [
    ("spillway", "spillway-downstreamer.service"),
    ("spillway", "spillway-archiver.service"),
    ("spillway", "spillway-console.service"),
    ("spillway", "spillway-receiver.service"),
    ("spillway-kafka", "spillway-kafka.service"),
];

#[test]
fn what_runs_is_replaced() {
    // A unit that is just starting also runs the old program.
    for state in ["active", "activating"] {
        for (package, service) in SERVICES {
            let machine = Machine::new();
            machine.replace(("systemctl", &format!("case $1 in show) echo {state} ;; esac")));
            machine.configure(package);
            assert!(machine.was_called(&format!("systemctl try-restart {service}")), "{service}");
        }
    }
}

#[test]
fn named_consumers_that_run_are_replaced() {
    for (package, named) in [
        ("spillway", "spillway-downstreamer@billing.service"),
        ("spillway", "spillway-kafka@audit.service"),
        ("spillway-kafka", "spillway-kafka@audit.service"),
    ] {
        let machine = Machine::new();
        let lists = format!(
            "case $1 in show) echo active ;; list-units) echo '{named} loaded active running x' ;; esac"
        );
        machine.replace(("systemctl", &lists));
        machine.configure(package);
        assert!(machine.was_called(&format!("systemctl try-restart {named}")), "{named}");
    }
}

#[test]
fn what_is_masked_is_left_alone_without_a_word() {
    for (package, service) in SERVICES {
        let machine = Machine::new();
        let masked = "case $1 in show) echo inactive ;; try-restart) exit 1 ;; esac";
        machine.replace(("systemctl", masked));
        let output = machine.configure(package);
        assert!(!machine.was_called(&format!("systemctl try-restart {service}")), "{service}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    }
}

/// Files in `/etc/spillway` that `postinst` makes, or that a page tells its reader to make.
const MADE_THERE: [&str; 21] = [
    "client-secret",
    "client-secret-old",
    "receiver.env",
    "downstreamer.env",
    "kafka.env",
    "downstreamer",
    "downstreamer/billing.env",
    "kafka",
    "kafka/audit.env",
    "archive-keys",
    "archive-account.json",
    "apps.toml",
    "shop-secrets",
    "secrets-token",
    "console",
    "console/users",
    "console/tokens",
    "console/tls.pem",
    "console/tls.key",
    "console/archive-keys",
    "console/redis-password",
];

/// Source and destination of each asset of a package, from the manifest of its crate.
fn assets(package: &str) -> Vec<(String, String)> {
    let manifest = repository().join(package).join("Cargo.toml");
    let manifest = fs::read_to_string(manifest).expect("read a manifest");
    let rows = manifest.lines().map(str::trim).filter(|line| line.starts_with("[\""));
    let quoted = |row: &str| {
        let mut words = row.split('"').skip(1).step_by(2).map(str::to_owned);
        (words.next().expect("a source"), words.next().expect("a destination"))
    };
    rows.map(quoted).collect()
}

/// Names of the files that a source stands for. Pages are generated, and named after their command.
/// A name contains the directory if that is `*`.
fn names(source: &str) -> Vec<String> {
    let (directory, name) = source.rsplit_once('/').expect("a source is in a directory");
    if let Some(parent) = directory.strip_suffix("/*") {
        let within = |each: String| {
            let names = names(&format!("{parent}/{each}/{name}"));
            names.into_iter().map(move |name| format!("{each}/{name}"))
        };
        let entries = entries(parent.strip_prefix("../").expect("a directory of the repository"));
        let directories = entries.into_iter().filter(|(_, path)| path.is_dir());
        return directories.flat_map(|(each, _)| within(each)).collect();
    }
    let Some((before, after)) = name.split_once('*') else { return vec![name.to_owned()] };
    let Some(directory) = directory.strip_prefix("../") else {
        let command = directory.rsplit('/').next().unwrap_or_default();
        return vec![format!("{command}{after}")];
    };
    let names = entries(directory).into_iter().map(|(name, _)| name);
    names.filter(|name| name.starts_with(before) && name.ends_with(after)).collect()
}

/// Names and paths of what a directory of the repository holds.
fn entries(directory: &str) -> Vec<(String, PathBuf)> {
    let entries = fs::read_dir(repository().join(directory)).expect("the directory of a source");
    let entry = |entry: fs::DirEntry| {
        (entry.file_name().into_string().expect("a name is text"), entry.path())
    };
    entries.map(|found| entry(found.expect("an entry"))).collect()
}

/// Files of the repository that a source stands for, each with its name.
fn sources(source: &str) -> Vec<(String, PathBuf)> {
    let before = source.split('*').next().unwrap_or_default();
    let directory = before.rsplit_once('/').map_or("", |(directory, _)| directory);
    let file = |name: String| (name.clone(), repository().join(directory).join(name));
    names(&format!("../{source}")).into_iter().map(file).collect()
}

/// Paths of all files that the packages install.
fn installed() -> BTreeSet<String> {
    ["spillway", "kafka_producer"].into_iter().flat_map(installed_by).collect()
}

/// True for an installed file, and for a directory of one.
fn is_in(installed: &BTreeSet<String>, path: &str) -> bool {
    let directory = format!("{path}/");
    installed.contains(path) || installed.iter().any(|file| file.starts_with(&directory))
}

/// Paths of all files that a package installs.
fn installed_by(package: &str) -> BTreeSet<String> {
    let path = |(source, destination): (String, String)| match destination.strip_suffix('/') {
        Some(directory) => {
            names(&source).iter().map(|name| format!("/{directory}/{name}")).collect()
        }
        None => vec![format!("/{destination}")],
    };
    assets(package).into_iter().flat_map(path).collect()
}

/// Files that readers see, below a directory or a file of the repository.
fn texts(path: &Path) -> Vec<PathBuf> {
    if path.is_file() {
        return vec![path.to_owned()];
    }
    let entries = fs::read_dir(path).expect("a directory of pages");
    entries.flat_map(|entry| texts(&entry.expect("an entry").path())).collect()
}

/// Installed paths that a text names.
fn named(text: &str) -> BTreeSet<String> {
    let is_path = |letter: char| letter.is_ascii_alphanumeric() || "/._-*".contains(letter);
    // A manual page writes hyphens like this.
    let text = text.replace("\\-", "-");
    let words = text.split(|letter| !is_path(letter)).map(|word| word.trim_end_matches(['.', '/']));
    let is_ours = |word: &&str| {
        let is_shared = word.starts_with("/usr/share/") || word.starts_with("/usr/lib/");
        (is_shared && word.contains("spillway")) || word.starts_with("/etc/spillway/")
    };
    words.filter(is_ours).filter(|word| !word.contains('*')).map(str::to_owned).collect()
}

#[test]
fn what_pages_name_by_its_installed_path_is_in_a_package() {
    let installed = installed();
    let is_there = |path: &String| {
        let made =
            path.strip_prefix("/etc/spillway/").is_some_and(|name| MADE_THERE.contains(&name));
        made || is_in(&installed, path)
    };
    let pages = ["README.md", "SECURITY.md", "CHANGELOG.md", "docs", "ops/debian/man", "ops/nginx"];
    let pages =
        pages.into_iter().chain(["ops/redis.conf", "ops/debian/spillway.env", "ops/prometheus"]);
    let pages = pages.chain(["ops/debian/archiver.env", "ops/debian/console.env"]);
    let mut count = 0;
    for page in pages.flat_map(|page| texts(&repository().join(page))) {
        // Pictures name nothing.
        let Ok(text) = fs::read_to_string(&page) else { continue };
        for path in named(&text) {
            count += 1;
            assert!(is_there(&path), "{} names {path}, which is in no package", page.display());
        }
    }
    assert!(count > 20, "only {count} paths were found");
}

/// A password of a broker, and access to a bucket. systemd reads these files, or copies them for their service.
#[test]
fn files_with_access_to_other_systems_are_installed_for_root_alone() {
    for (package, file) in [
        ("spillway", "archiver.env"),
        ("spillway", "console.env"),
        ("kafka_producer", "kafka.properties"),
    ] {
        let manifest = repository().join(package).join("Cargo.toml");
        let manifest = fs::read_to_string(manifest).expect("read a manifest");
        let row = format!("[\"../ops/debian/{file}\", \"etc/spillway/\", \"600\"]");
        assert!(manifest.contains(&row), "{package}: {file}");
        assert!(manifest.contains(&format!("\"/etc/spillway/{file}\"")), "{file} is a conffile");
    }
}

#[test]
fn what_the_packages_install_is_there_to_be_installed() {
    for (source, _) in ["spillway", "kafka_producer"].into_iter().flat_map(assets) {
        let Some(source) = source.strip_prefix("../") else { continue };
        let found = sources(source);
        assert!(!found.is_empty(), "{source} stands for nothing");
        for (_, file) in found {
            assert!(file.is_file(), "{} is no file", file.display());
        }
    }
}

#[test]
fn links_of_an_installed_page_lead_to_what_its_package_installs() {
    let mut broken = BTreeSet::new();
    let mut count = 0;
    for package in ["spillway", "kafka_producer"] {
        let installed = installed_by(package);
        for (page, text) in installed_pages(package) {
            for link in links(&text) {
                count += 1;
                if !is_in(&installed, &target(&page, &link)) {
                    broken.insert(format!("{page}: {link}"));
                }
            }
        }
    }
    assert!(count > 100, "only {count} links were found");
    assert!(broken.is_empty(), "links to what is not installed: {broken:#?}");
}

/// Installed path and text of each page of a package.
fn installed_pages(package: &str) -> Vec<(String, String)> {
    let mut pages = Vec::new();
    for (source, destination) in assets(package) {
        let Some(source) = source.strip_prefix("../") else { continue };
        for (name, file) in sources(source).into_iter().filter(|(name, _)| name.ends_with(".md")) {
            let text = fs::read_to_string(&file).expect("read a page");
            pages.push((format!("/{destination}{name}"), text));
        }
    }
    pages
}

/// Path of the file or directory to which a link of an installed page leads.
fn target(page: &str, link: &str) -> String {
    let file = link.split('#').next().unwrap_or_default();
    if file.is_empty() {
        return page.to_owned();
    }
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in file.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[test]
fn every_command_has_a_manual_page_and_completions() {
    let installed = installed();
    let commands = installed.iter().filter_map(|path| path.strip_prefix("/usr/bin/"));
    let mut count = 0;
    for command in commands {
        count += 1;
        let pages =
            ["1", "8"].map(|section| format!("/usr/share/man/man{section}/{command}.{section}.gz"));
        assert!(pages.iter().any(|page| installed.contains(page)), "{command} has no page");
        for completion in [
            format!("/usr/share/bash-completion/completions/{command}"),
            format!("/usr/share/zsh/vendor-completions/_{command}"),
            format!("/usr/share/fish/vendor_completions.d/{command}.fish"),
        ] {
            assert!(installed.contains(&completion), "{completion} is missing");
        }
    }
    assert_eq!(count, 5);
}
