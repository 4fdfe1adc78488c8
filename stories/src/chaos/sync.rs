//! Slow or failing disk syncs of a process, injected by strace.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::until::until;

const ATTACHES_WITHIN: Duration = Duration::from_secs(10);

/// A running strace. When it is dropped, the process continues untraced.
#[derive(Debug)]
pub struct Syncs(Child);

impl Syncs {
    /// Delays each sync of a process by `by_us` microseconds.
    pub async fn delayed(process: u32, by_us: u32) -> Self {
        Self::tampered(process, &format!("delay_enter={by_us}")).await
    }

    /// Fails each sync of a process, as on a broken disk.
    pub async fn failing(process: u32) -> Self {
        Self::tampered(process, "error=EIO").await
    }

    async fn tampered(process: u32, how: &str) -> Self {
        let mut strace = Command::new("strace");
        strace.args(["-f", "-qq", "-o", "/dev/null", "-p", &process.to_string()]);
        strace.args(["-e", "trace=fdatasync,fsync", "-e"]);
        strace.arg(format!("inject=fdatasync,fsync:{how}"));
        let strace = strace.stdin(Stdio::null()).stderr(Stdio::null()).spawn();
        let syncs =
            Self(strace.expect("strace is missing; install it with: apt-get install strace"));
        until("strace is attached", ATTACHES_WITHIN, async || is_traced(process)).await;
        syncs
    }
}

impl Drop for Syncs {
    fn drop(&mut self) {
        // A killed strace leaves its tracee untraced and running: ptrace(2).
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Also true for a process that has ended, because failing syncs are expected to end it.
fn is_traced(process: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"));
    let tracer =
        status.as_deref().unwrap_or("").lines().find(|line| line.starts_with("TracerPid:"));
    tracer.is_none_or(|line| !line.ends_with("\t0")) || status.is_ok_and(|s| s.contains("(zombie)"))
}
