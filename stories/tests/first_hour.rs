//! The first hour: runs the commands of README.md as printed, in a clone of the repository.
//!
//! The commands use the default ports, as they do for a newcomer. A cell that already runs on this
//! machine must be stopped first; `make run` reports the port.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use stories::binaries::{ours, repository};
use stories::machine;
use stories::page::blocks;
use stories::process::{Process, Recipe};
use stories::report::say;
use stories::until::until;
use tempfile::TempDir;

/// Time limit for `make run`, which checks for packages first, and for Redis to start.
const STARTS_WITHIN: Duration = Duration::from_secs(60);
/// Time limit for the end. The downstreamer waits for deliveries in flight.
const ENDS_WITHIN: Duration = Duration::from_secs(45);
/// The programs that `make run` and `attack.sh` build.
const PROGRAMS: [&str; 4] = ["spillway", "request-receiver", "downstreamer", "generate"];
const DELIVERED: &str = "The signed sample (request.json) was answered 200";

/// A clone of the repository, with the programs built for the tests in its `target/local`.
struct Checkout {
    path: PathBuf,
    _directory: TempDir,
}

impl Checkout {
    fn make() -> Self {
        let directory = tempfile::Builder::new().prefix("spillway-").tempdir();
        let directory = directory.expect("make a directory");
        let path = directory.path().join("spillway");
        let source = repository().as_os_str();
        git(&["clone".as_ref(), "--quiet".as_ref(), source, path.as_os_str()]);
        let built = path.join("target/local");
        fs::create_dir_all(&built).expect("make target/local");
        for program in PROGRAMS {
            symlink(ours(program), built.join(program)).expect("link a program");
        }
        Self { path, _directory: directory }
    }

    /// Starts `make run`. It builds nothing, because the programs exist.
    fn run(&self) -> Process {
        let recipe = Recipe {
            name: "make".to_owned(),
            program: "make".into(),
            arguments: vec!["run".into(), "PREBUILT=1".into()],
            environment: environment(),
            directory: self.path.clone(),
            sockets: Vec::new(),
        };
        recipe.start()
    }

    /// Runs a command of README.md in a shell, with a small attack.
    async fn shell(&self, command: &str) -> Output {
        let mut shell = Command::new("bash");
        shell
            .args(["-c", command])
            .current_dir(&self.path)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .envs(environment())
            .envs([("RATE", "200"), ("DURATION", "1s")]);
        let run = move || shell.output().expect("run bash");
        tokio::task::spawn_blocking(run).await.expect("the command was run")
    }

    /// Ids and names of the processes whose working directory is in the clone.
    fn processes(&self) -> Vec<(i32, String)> {
        let entries = fs::read_dir("/proc").expect("read /proc").filter_map(Result::ok);
        let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        ids.filter_map(|id| Some((id, name_if_in(id, &self.path)?))).collect()
    }

    /// The process that receives a Ctrl-C in the terminal. The console is another one with its name.
    fn cell(&self) -> Pid {
        let processes = self.processes();
        let cell = processes.iter().find(|(id, name)| name == "spillway" && is_dev(*id));
        let (id, _) = cell.unwrap_or_else(|| panic!("no spillway among {processes:?}"));
        Pid::from_raw(*id).expect("a process id")
    }
}

/// True if the process is `spillway dev`.
fn is_dev(id: i32) -> bool {
    let line = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
    line.split(|byte| *byte == 0).any(|word| word == b"dev")
}

/// Name of a process if its working directory is in `directory`. A zombie has none.
fn name_if_in(id: i32, directory: &Path) -> Option<String> {
    let process = PathBuf::from(format!("/proc/{id}"));
    let is_in = fs::read_link(process.join("cwd")).ok()?.starts_with(directory);
    is_in
        .then(|| fs::read_to_string(process.join("comm")).ok())
        .flatten()
        .map(|name| name.trim().to_owned())
}

/// Variables that are kept: `HOME`, where Rust and Go keep their caches, and settings of Go and of
/// a proxy.
fn environment() -> Vec<(String, String)> {
    let is_kept = |name: &str| {
        name == "HOME" || name.starts_with("GO") || name.to_lowercase().ends_with("_proxy")
    };
    std::env::vars().filter(|(name, _)| is_kept(name)).collect()
}

fn git(arguments: &[&std::ffi::OsStr]) {
    let status = Command::new("git").args(arguments).status();
    let status = status.expect("git is missing; install it with: apt-get install git");
    assert!(status.success(), "git {arguments:?}");
}

/// The commands that README.md gives for a second terminal.
fn second_terminal() -> Vec<String> {
    let readme = fs::read_to_string(repository().join("README.md")).expect("read README.md");
    let is_meant = |text: &str| text.contains("./attack.sh");
    let block = blocks(&readme).into_iter().find(|block| is_meant(&block.text));
    let block = block.expect("a block with ./attack.sh in README.md");
    block.text.lines().map(str::to_owned).collect()
}

fn require_vegeta() {
    let found = Command::new("sh").args(["-c", "command -v vegeta || command -v go"]).output();
    let is_found = found.expect("run sh").status.success();
    assert!(is_found, "Go is missing; install it with: apt-get install golang-go (1.24 or newer)");
}

/// Texts that the output of a command must contain.
fn expected(command: &str) -> &'static [&'static str] {
    match command {
        _ if command.contains(" send ") => &["20 sent, 20 answered 200"],
        _ if command.contains(" status ") => &["CONSUMER", "http"],
        _ if command.contains(" doctor ") => &["0 problems, 0 warnings"],
        _ if command.contains("attack.sh spike") => &["   100.00 %\nrefused               0"],
        other => panic!("README.md gives a command that this story does not know: {other}"),
    }
}

/// Webhooks of an attack that were accepted. Vegeta stops after a second, so on a busy machine the last few of
/// 200 are never sent.
fn accepted(output: &str) -> usize {
    let count = output.lines().find_map(|line| line.strip_prefix("accepted"));
    let count = count.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0);
    assert!((190..=200).contains(&count), "{count} of 200 were accepted:\n{output}");
    count
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_commands_of_the_readme_work_as_they_stand_there() {
    let _slots = machine::busy();
    require_vegeta();
    let commands = second_terminal();
    assert_eq!(commands.len(), 4, "{commands:?}");
    let clone = Checkout::make();
    let mut make = clone.run();
    until("the sample is delivered", STARTS_WITHIN, async || {
        assert!(make.is_running(), "make run ended: {}", make.output());
        make.output().contains(DELIVERED)
    })
    .await;
    let events = "EVENTS=1 ./attack.sh spike";
    // The sample, and those of `spillway send`.
    let mut sent = 21;
    for command in commands.iter().map(String::as_str).chain([events]) {
        let output = clone.shell(command).await;
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command}: {}\n{text}{errors}", output.status);
        for expected in expected(command) {
            assert!(text.contains(expected), "no {expected:?} after {command}:\n{text}{errors}");
        }
        if command.contains("attack.sh") {
            sent += accepted(&text);
        }
    }
    until("all of it is delivered", STARTS_WITHIN, async || {
        make.output().lines().filter(|line| line.starts_with("delivered  POST")).count() == sent
    })
    .await;
    kill_process(clone.cell(), Signal::INT).expect("interrupt the cell");
    let status = make.exit(ENDS_WITHIN).await;
    assert!(status.success(), "make run ended with {status}");
    assert_eq!(clone.processes(), [], "processes that are left");
    say(&format!("first hour: `make run` and {} commands beside it", commands.len()));
}

#[tokio::test]
async fn an_attack_reads_the_secret_from_the_file_that_is_named_wherever_it_is_named() {
    let _slots = machine::shared();
    let clone = Checkout::make();
    // Nothing listens on port 9, so the error is about a check before the connection.
    let attack = "URL=http://127.0.0.1:9/ ./attack.sh spike";
    let errors = |output: Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let without = errors(clone.shell(attack).await);
    assert!(without.contains("SHOPIFY_CLIENT_SECRET is not set"), "{without}");
    fs::write(clone.path.join("my-secret"), "one\n").expect("write a secret");
    fs::write(clone.path.join(".env"), "SHOPIFY_CLIENT_SECRET_FILE=my-secret\n").expect("write");
    let from_file = errors(clone.shell(attack).await);
    assert!(from_file.contains("nothing answers at"), "{from_file}");
    fs::write(clone.path.join(".env"), "SHOPIFY_CLIENT_SECRET_FILE=nowhere\n").expect("write");
    let unreadable = errors(clone.shell(attack).await);
    assert!(unreadable.contains("cannot read"), "{unreadable}");
    let from_elsewhere = format!(
        "cd docs && export SHOPIFY_CLIENT_SECRET_FILE=../my-secret && {}",
        attack.replace("./", "../")
    );
    let from_elsewhere = errors(clone.shell(&from_elsewhere).await);
    assert!(from_elsewhere.contains("nothing answers at"), "{from_elsewhere}");
}
