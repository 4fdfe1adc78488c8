//! The processes of the cell: each has its own log, and they are watched and stopped in order.
//!
//! Each process has its own process group. A Ctrl-C in the terminal therefore reaches only this
//! process, which then stops the others one by one.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use futures_util::future::select_all;
use rustix::process::{Pid, Signal, kill_process};
use spillway_process::Checker;
use tokio::process::{Child, Command};

use super::signals::Signals;
use super::state::CellDirectory;
use crate::failure::Failure;
use crate::out::printable;

/// Longer than the longest default `SHUTDOWN_TIMEOUT` (35 s, of the downstreamer).
const STOP_LIMIT: Duration = Duration::from_secs(45);
/// Lines of a log that are shown if its process fails.
const TAIL_LINES: usize = 15;
/// Memory limit of the private Redis: enough for a trial, without using up the whole machine.
const REDIS_MAXMEMORY: &str = "1gb";

/// Parameters to start one of our own processes.
#[derive(Debug)]
pub(super) struct Recipe {
    /// Name of the process in messages and file names.
    pub name: &'static str,
    /// Path of the binary.
    pub program: PathBuf,
    /// Arguments.
    pub arguments: &'static [&'static str],
    /// Settings added to this process' environment.
    pub settings: Vec<(&'static str, OsString)>,
    /// Variable of this process' environment that is not passed on.
    pub removed: &'static str,
}

/// The running processes, in the order in which they were started.
pub(super) struct Children<'a> {
    state: &'a CellDirectory,
    running: Vec<Running>,
}

struct Running {
    name: &'static str,
    child: Child,
}

impl Recipe {
    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(self.arguments);
        command.env_remove(self.removed).envs(self.settings.iter().map(|(k, v)| (k, v)));
        command
    }
}

impl<'a> Children<'a> {
    /// Creates an empty list.
    pub(super) fn new(state: &'a CellDirectory) -> Self {
        Self { state, running: Vec::new() }
    }

    /// Starts the private Redis.
    pub(super) fn start_redis(&mut self) -> Result<(), Failure> {
        let mut command = Command::new("redis-server");
        command.arg(self.state.path("redis.conf"));
        command.arg("--dir").arg(self.state.path("redis"));
        command.arg("--unixsocket").arg(self.state.redis_socket());
        command.args(["--maxmemory", REDIS_MAXMEMORY]);
        self.spawn("redis", command)
    }

    /// Runs `--check` of each process, so that the mistakes of all are reported together.
    pub(super) async fn check(recipes: &[&Recipe]) -> Result<(), Failure> {
        let mut checker = Checker::default();
        for recipe in recipes {
            let mut command = recipe.command();
            let output = command.arg("--check").kill_on_drop(true).output().await;
            let output = output.map_err(|error| not_started(recipe.program.as_os_str(), &error))?;
            if !output.status.success() {
                for mistake in printable(&output.stderr).lines() {
                    checker.mistake(recipe.name, mistake);
                }
            }
        }
        Ok(checker.finish(())?)
    }

    /// Starts one of our own processes.
    pub(super) fn start(&mut self, recipe: &Recipe) -> Result<(), Failure> {
        self.spawn(recipe.name, recipe.command())
    }

    fn spawn(&mut self, name: &'static str, mut command: Command) -> Result<(), Failure> {
        let program = command.as_std().get_program().to_owned();
        let log_file = self.state.log_file(name);
        let log = File::create(&log_file).and_then(|log| Ok((log.try_clone()?, log)));
        let (output, errors) = log.map_err(|error| {
            Failure::Failed(format!("cannot write {}: {error}", log_file.display()))
        })?;
        let child = command
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| not_started(&program, &error))?;
        if let Some(pid) = child.id() {
            // Only needed after a SIGKILL of this process, so a failed write is ignored.
            fs::write(self.state.pid_file(name), format!("{pid}\n")).ok();
        }
        self.running.push(Running { name, child });
        Ok(())
    }

    /// Waits until one of the processes ends, which is always an error. Reports which one, and why.
    pub(super) async fn any_ends(&mut self) -> Failure {
        let waits = self.running.iter_mut().map(|running| Box::pin(running.child.wait()));
        let (status, index, _) = select_all(waits).await;
        let name = self.running[index].name;
        let status = status.map_or_else(|error| error.to_string(), describe);
        Failure::Failed(format!("{name} ended ({status})\n{}", self.tail(name)))
    }

    /// Reports that something did not happen in time, with the last lines of all logs.
    pub(super) fn too_late(&self, what: &str) -> Failure {
        let tails: Vec<_> = self.running.iter().map(|running| self.tail(running.name)).collect();
        Failure::Failed(format!("{what} in time\n{}", tails.join("\n")))
    }

    /// Stops the receiver, then the downstreamer and the console, then Redis. A second signal kills them.
    pub(super) async fn stop(mut self, signals: &Signals) {
        // Redis was started first, and the others need it until they have ended.
        if !self.running.is_empty() {
            self.running.rotate_left(1);
        }
        for mut running in std::mem::take(&mut self.running) {
            running.stop(signals).await;
            fs::remove_file(self.state.pid_file(running.name)).ok();
        }
    }

    fn tail(&self, name: &str) -> String {
        let file = self.state.log_file(name);
        let log = printable(&fs::read(&file).unwrap_or_default());
        let lines: Vec<_> = log.lines().collect();
        let last = lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n  ");
        format!("the end of {}:\n  {last}", file.display())
    }
}

impl Running {
    async fn stop(&mut self, signals: &Signals) {
        let pid = self.child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        // Without a pid the process has ended; a failed signal means the same.
        if let Some(pid) = pid
            && kill_process(pid, Signal::TERM).is_err()
        {
            return;
        }
        let has_ended = tokio::select! {
            _ = self.child.wait() => true,
            () = signals.kill.cancelled() => false,
            () = tokio::time::sleep(STOP_LIMIT) => false,
        };
        if !has_ended {
            eprintln!("spillway: {} does not stop: killed", self.name);
            // This fails only if the process has ended.
            self.child.kill().await.ok();
        }
    }
}

fn describe(status: ExitStatus) -> String {
    status.to_string()
}

fn not_started(program: &OsStr, error: &std::io::Error) -> Failure {
    let hint = match error.kind() {
        std::io::ErrorKind::NotFound => "; install it with: apt-get install redis-server",
        _ => "",
    };
    Failure::Failed(format!("cannot start {}: {error}{hint}", program.display()))
}
