//! Configuration of the packages, simulated in a directory. It runs their own scripts with
//! `/etc/spillway` elsewhere, and replaces programs that change the machine by ones that record
//! their calls.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};

use stories::binaries::repository;
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

const SERVICES: [(&str, &str); 3] = [
    ("spillway", "spillway-downstreamer.service"),
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
