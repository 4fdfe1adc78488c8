//! What a disk does to a sync, put between a process and the kernel by strace.

use std::process::{Child, Command, Stdio};

/// Strace at work. Dropped, the process is left alone again.
#[derive(Debug)]
pub struct Syncs(Child);

impl Syncs {
    /// Each sync of a process takes so much longer, in microseconds.
    pub fn delayed(process: u32, by_us: u32) -> Self {
        Self::tampered(process, &format!("delay_enter={by_us}"))
    }

    /// Each sync of a process fails as on a broken disk.
    pub fn failing(process: u32) -> Self {
        Self::tampered(process, "error=EIO")
    }

    fn tampered(process: u32, how: &str) -> Self {
        let mut strace = Command::new("strace");
        strace.args(["-f", "-qq", "-o", "/dev/null", "-p", &process.to_string()]);
        strace.args(["-e", "trace=fdatasync,fsync", "-e"]);
        strace.arg(format!("inject=fdatasync,fsync:{how}"));
        let strace = strace.stdin(Stdio::null()).stderr(Stdio::null()).spawn();
        Self(strace.expect("strace is missing; install it with: apt-get install strace"))
    }
}

impl Drop for Syncs {
    fn drop(&mut self) {
        // Killed, it leaves its tracee untraced and running: ptrace(2).
        self.0.kill().ok();
        self.0.wait().ok();
    }
}
