//! A child process: settings, log, and the signals that a test sends.
//!
//! A process never outlives its value: dropping it kills and reaps the process. If the test fails,
//! the end of the log is printed.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};

use crate::report::show_log;
use crate::until::until_some;

/// Passes standard input as the first socket. Source: sd_listen_fds(3).
const TAKE_SOCKET: &str =
    "exec 3<&0 </dev/null; LISTEN_FDS=1 LISTEN_PID=$$; export LISTEN_FDS LISTEN_PID; ";
/// Also passes standard output as the second socket. Output to it then goes to standard error.
const TAKE_SOCKETS: &str =
    "exec 3<&0 4>&1 </dev/null >&2; LISTEN_FDS=2 LISTEN_PID=$$; export LISTEN_FDS LISTEN_PID; ";

/// Ends the shell commands: the shell becomes the program given by its arguments.
const BECOME_PROGRAM: &str = r#"exec "$0" "$@""#;

/// Parameters to start a process, kept for a restart.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// Name for logs and failures.
    pub name: String,
    /// The program.
    pub program: PathBuf,
    /// Arguments.
    pub arguments: Vec<OsString>,
    /// The whole environment, except for `PATH`.
    pub environment: Vec<(String, String)>,
    /// Working directory, which also holds the log.
    pub directory: PathBuf,
    /// Listening sockets that are passed as systemd does, at most two.
    pub sockets: Vec<Arc<OwnedFd>>,
}

/// A started process.
#[derive(Debug)]
pub struct Process {
    recipe: Recipe,
    log: PathBuf,
    child: Child,
}

impl Recipe {
    /// The command, with nothing of this process' environment except `PATH`: a developer's
    /// `REDIS_URL` must not reach a test.
    pub fn command(&self) -> Command {
        let mut command = self.program();
        command
            .args(&self.arguments)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("RUST_BACKTRACE", "1")
            .envs(self.environment.iter().map(|(key, value)| (key, value)))
            .current_dir(&self.directory);
        command
    }

    fn program(&self) -> Command {
        let take = match self.sockets.len() {
            0 => {
                let mut command = Command::new(&self.program);
                command.stdin(Stdio::null());
                return command;
            }
            1 => TAKE_SOCKET,
            _ => TAKE_SOCKETS,
        };
        // The number of the socket and the process id are known only once the process exists. A
        // shell sets both and then becomes the program.
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(format!("{take}{BECOME_PROGRAM}")).arg(&self.program);
        command.stdin(self.copy_of_socket(0));
        command
    }

    fn copy_of_socket(&self, place: usize) -> OwnedFd {
        self.sockets[place].try_clone().expect("a copy of a socket")
    }

    /// Starts the process. Its output is appended to `<name>.log`.
    pub fn start(self) -> Process {
        let log = self.directory.join(format!("{}.log", self.name));
        let child = self.spawn(&log);
        Process { recipe: self, log, child }
    }

    fn spawn(&self, log: &Path) -> Child {
        let open = || File::options().create(true).append(true).open(log).expect("open a log file");
        let mut command = self.command();
        match self.sockets.len() {
            0 | 1 => command.stdout(open()),
            _ => command.stdout(self.copy_of_socket(1)),
        };
        command
            .stderr(open())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {}: {error}", self.program.display()))
    }
}

impl Process {
    /// Name for logs and failures.
    pub fn name(&self) -> &str {
        &self.recipe.name
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Everything that it has written so far.
    pub fn output(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Prints the end of the log.
    pub fn show_log(&self) {
        show_log(&self.recipe.name, &self.log);
    }

    /// Kills it with SIGKILL and waits until it is gone.
    pub fn kill9(&mut self) {
        self.child.kill().expect("kill a child");
        self.child.wait().expect("reap a child");
    }

    /// Stops it with SIGSTOP, like a paused virtual machine.
    pub fn sigstop(&self) {
        self.signal(Signal::STOP);
    }

    /// Continues it with SIGCONT.
    pub fn sigcont(&self) {
        self.signal(Signal::CONT);
    }

    /// Sends SIGHUP, so that it reads its secret files again.
    pub fn sighup(&self) {
        self.signal(Signal::HUP);
    }

    /// Sends SIGTERM, without waiting.
    pub fn sigterm(&self) {
        self.signal(Signal::TERM);
    }

    /// Waits until it ends and returns its exit status.
    pub async fn exit(&mut self, within: Duration) -> ExitStatus {
        let what = format!("{} ends", self.recipe.name);
        until_some(&what, within, async || self.ended()).await
    }

    /// Waits until it ends, without async code: for use while values are dropped.
    pub fn wait(&mut self, within: Duration) {
        let started = Instant::now();
        while self.is_running() && started.elapsed() < within {
            std::thread::sleep(Duration::from_millis(15));
        }
    }

    /// True while it runs.
    pub fn is_running(&mut self) -> bool {
        self.ended().is_none()
    }

    /// Exit status, if it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("look at a child")
    }

    /// Starts it again with the same parameters. It must have ended.
    pub fn restart(&mut self) {
        assert!(!self.is_running(), "{} still runs", self.recipe.name);
        self.child = self.recipe.spawn(&self.log);
    }

    /// Starts it again with a log that is a pipe whose reader has ended, so that its log is lost.
    pub fn restart_without_log(&mut self) {
        assert!(!self.is_running(), "{} still runs", self.recipe.name);
        let pipe = self.recipe.directory.join(format!("{}.pipe", self.recipe.name));
        let made = Command::new("mkfifo").arg(&pipe).status().expect("run mkfifo");
        assert!(made.success(), "mkfifo fails");
        // Opened for writing too, because opening it only for reading waits for a writer.
        let reader = File::options().read(true).write(true).open(&pipe).expect("open the pipe");
        self.child = self.recipe.spawn(&pipe);
        drop(reader);
        std::fs::remove_file(&pipe).expect("remove the pipe");
    }

    /// Limits its open files to the present number, or removes that limit.
    pub fn limit_files(&self, is_limited: bool) {
        let pid = Some(Pid::from_child(&self.child));
        let maximum = getrlimit(Resource::Nofile).maximum;
        let open = std::fs::read_dir(format!("/proc/{}/fd", self.id())).map(Iterator::count);
        let current = if is_limited { open.ok().map(|open| open as u64) } else { maximum };
        // The process may have ended just now.
        prlimit(pid, Resource::Nofile, Rlimit { current, maximum }).ok();
    }

    /// Adds arguments for the next start.
    pub fn add_arguments(&mut self, arguments: &[&str]) {
        self.recipe.arguments.extend(arguments.iter().map(OsString::from));
    }

    /// Removes the last `count` arguments.
    pub fn drop_arguments(&mut self, count: usize) {
        let keep = self.recipe.arguments.len() - count;
        self.recipe.arguments.truncate(keep);
    }

    /// Resident memory in bytes.
    pub fn resident_bytes(&self) -> u64 {
        self.resident_bytes_if_alive().expect("a VmRSS line in /proc/PID/status")
    }

    /// Same as [`resident_bytes`](Self::resident_bytes), for a process that may end meanwhile.
    pub fn resident_bytes_if_alive(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id())).ok()?;
        let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
        Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? * 1024)
    }

    /// Gives it priority over normal processes. Returns false if this user may not.
    pub fn put_first(&self) -> bool {
        let id = self.id().to_string();
        let status = Command::new("renice").args(["-n", "-15", "-p", &id]).output();
        status.is_ok_and(|output| output.status.success())
    }

    /// CPU time of all its threads since it started.
    pub fn cpu(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.id()))
            .expect("read /proc/PID/stat");
        // User and system time are the 12th and 13th fields after the name. The name may contain
        // anything, including `)` (proc_pid_stat(5)).
        let (_, behind) = stat.rsplit_once(')').expect("a name in brackets");
        let ticks = behind.split_whitespace().skip(11).take(2);
        let ticks: u64 = ticks.map(|ticks| ticks.parse::<u64>().expect("a number of ticks")).sum();
        Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
    }

    /// Number of files and connections that it has open.
    pub fn open_files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.id())).expect("read /proc/PID/fd").count()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal)
            .unwrap_or_else(|error| panic!("cannot signal {}: {error}", self.recipe.name));
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
        if std::thread::panicking() {
            self.show_log();
        }
    }
}
