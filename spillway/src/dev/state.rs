//! Files of a cell in `./run`: data and socket of its Redis, a secret, settings, logs.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rand::RngExt;

use crate::failure::Failure;
use crate::send::webhook::SAMPLE;

const DIRECTORY: &str = "run";
const REDIS_CONF: &str = include_str!("../../../ops/redis.conf");
/// Longest path of a unix socket, without its terminating zero.
const SOCKET_PATH_MAX: usize = 107;
/// Processes of a cell: the name of their files, and the process name in the kernel.
const PROCESSES: [(&str, &str); 4] = [
    ("redis", "redis-server"),
    ("receiver", "request-receiv"),
    ("downstreamer", "downstreamer"),
    ("console", "spillway"),
];

/// The directory, locked against other cells while this value lives.
#[derive(Debug)]
pub(super) struct CellDirectory {
    directory: PathBuf,
    _lock: File,
}

impl CellDirectory {
    /// Creates `./run` and makes sure that no other cell uses it.
    pub(super) fn prepare() -> Result<Self, Failure> {
        Self::prepare_in(Path::new(DIRECTORY))
    }

    fn prepare_in(directory: &Path) -> Result<Self, Failure> {
        let failed = |error| failed("make", directory, error);
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory.join("redis"))
            .map_err(failed)?;
        let directory = directory.canonicalize().map_err(failed)?;
        let lock = File::create(directory.join("lock")).map_err(failed)?;
        if lock.try_lock().is_err() {
            return Err(Failure::Failed(format!(
                "another `spillway dev` runs in {}; stop it first",
                directory.display()
            )));
        }
        let state = Self { directory, _lock: lock };
        state.refuse_leftovers()?;
        if state.redis_socket().as_os_str().len() > SOCKET_PATH_MAX {
            return Err(Failure::Failed(format!(
                "{} is too long for a unix socket ({SOCKET_PATH_MAX} bytes); use a directory with \
                 a shorter path",
                state.redis_socket().display()
            )));
        }
        state.write("redis.conf", REDIS_CONF.as_bytes())?;
        state.write("request.json", SAMPLE.as_bytes())?;
        Ok(state)
    }

    /// Fails if processes of an earlier run still run. After a SIGKILL of its parent, a Redis still
    /// writes to these files, and a second one would corrupt them.
    fn refuse_leftovers(&self) -> Result<(), Failure> {
        // Redis last, as the others write to it while they stop.
        let started_last = PROCESSES.iter().rev();
        let pids: Vec<String> =
            started_last.filter_map(|(name, kernel)| self.left_over(name, kernel)).collect();
        if !pids.is_empty() {
            return Err(Failure::Failed(format!(
                "processes of an earlier run are still there; stop them with: kill {}",
                pids.join(" ")
            )));
        }
        if UnixStream::connect(self.redis_socket()).is_ok() {
            return Err(Failure::Failed(format!(
                "a Redis that was not started here serves {}; stop it first",
                self.redis_socket().display()
            )));
        }
        Ok(())
    }

    /// Returns the pid of a process that an earlier run left running. Pids are reused, so the name
    /// must match too.
    fn left_over(&self, name: &str, kernel_name: &str) -> Option<String> {
        let pid = fs::read_to_string(self.pid_file(name)).ok()?.trim().to_owned();
        let runs = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        runs.starts_with(kernel_name).then_some(pid)
    }

    /// Path of a file or directory of the cell.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Path of the socket of Redis.
    pub(super) fn redis_socket(&self) -> PathBuf {
        self.path("redis.sock")
    }

    /// The socket as a `REDIS_URL`.
    pub(super) fn redis_url(&self) -> String {
        let path = self.redis_socket().display().to_string();
        // Characters that a URL does not take as part of a path.
        let path = path.replace('%', "%25").replace('?', "%3F").replace('#', "%23");
        format!("unix://{path}")
    }

    /// Path of the log of a process.
    pub(super) fn log_file(&self, process: &str) -> PathBuf {
        self.path(&format!("{process}.log"))
    }

    /// Path of the file that holds the pid of a process while it runs.
    pub(super) fn pid_file(&self, process: &str) -> PathBuf {
        self.path(&format!("{process}.pid"))
    }

    /// Path of the file with this cell's own secret, which the first call creates.
    pub(super) fn secret_file(&self) -> Result<PathBuf, Failure> {
        let file = self.path("secret");
        if !file.is_file() {
            let secret: [u8; 32] = rand::rng().random();
            let hex: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
            self.write("secret", format!("{hex}\n").as_bytes())?;
        }
        Ok(file)
    }

    /// Writes a settings file for `--env-file`.
    pub(super) fn write_settings(&self, settings: &[(&str, OsString)]) -> Result<(), Failure> {
        let mut text = "# Written by `spillway dev`, for `spillway … --env-file`.\n".to_owned();
        for (name, value) in settings {
            text.push_str(&format!("{name}='{}'\n", value.display()));
        }
        self.write("spillway.env", text.as_bytes())
    }

    /// Writes a file that only its owner can read.
    fn write(&self, name: &str, content: &[u8]) -> Result<(), Failure> {
        let path = self.path(name);
        let open =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path);
        let written = open.and_then(|mut file| file.write_all(content));
        written.map_err(|error| failed("write", &path, error))
    }
}

fn failed(verb: &str, path: &Path, error: std::io::Error) -> Failure {
    Failure::Failed(format!("cannot {verb} {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_state_is_ours_alone_and_the_secret_stays() {
        let directory = tempfile::tempdir().unwrap();
        let state = CellDirectory::prepare_in(directory.path()).unwrap();
        assert!(CellDirectory::prepare_in(directory.path()).is_err(), "it is in use");
        let file = state.secret_file().unwrap();
        let secret = fs::read_to_string(&file).unwrap();
        assert_eq!(secret.trim().len(), 64);
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o077, 0);
        drop(state);
        let again = CellDirectory::prepare_in(directory.path()).unwrap();
        assert_eq!(fs::read_to_string(again.secret_file().unwrap()).unwrap(), secret);
    }

    #[test]
    fn a_process_that_was_left_behind_is_named() {
        let directory = tempfile::tempdir().unwrap();
        drop(CellDirectory::prepare_in(directory.path()).unwrap());
        // A pid that is in use by a process other than Redis.
        fs::write(directory.path().join("redis.pid"), std::process::id().to_string()).unwrap();
        let state = CellDirectory::prepare_in(directory.path()).unwrap();
        let own = fs::read_to_string("/proc/self/comm").unwrap();
        assert_eq!(state.left_over("redis", own.trim()), Some(std::process::id().to_string()));
    }
}
