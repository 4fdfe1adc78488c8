//! Paths of the programs under test. If one is missing, the test fails with the command that builds
//! it.

use std::env;
use std::fs::File;
use std::path::{Path, PathBuf};

/// `target/<profile>`: the test executable is in its `deps`.
pub fn directory() -> PathBuf {
    let test = env::current_exe().expect("the path of the test executable");
    let directory = test.parent().and_then(Path::parent).expect("a test lives in target/*/deps");
    directory.to_path_buf()
}

/// A file that test processes lock against each other, opened but not locked.
pub fn lock_file(name: &str) -> File {
    let path = directory().join(format!("stories-{name}.lock"));
    let mut options = File::options();
    let file = options.create(true).truncate(false).read(true).write(true).open(&path);
    file.unwrap_or_else(|error| panic!("cannot open {}: {error}", path.display()))
}

/// Directory of our own binaries: `BINARIES` if it is set, to measure release builds, or else the
/// directory of this test.
fn binaries() -> PathBuf {
    env::var_os("BINARIES").map_or_else(directory, |at| repository().join(at))
}

/// True if the binaries are release builds, made by `cargo build --release`.
pub fn are_released() -> bool {
    binaries().ends_with("release")
}

/// Path of one of our own binaries.
pub fn ours(name: &str) -> PathBuf {
    let path = binaries().join(name);
    assert!(
        path.is_file(),
        "{} is missing; build it with: cargo build --workspace --bins",
        path.display()
    );
    path
}

/// Path of one of our own examples.
pub fn example(name: &str) -> PathBuf {
    let path = directory().join("examples").join(name);
    assert!(
        path.is_file(),
        "{} is missing; build it with: cargo build --workspace --examples",
        path.display()
    );
    path
}

/// Path of `redis-server`.
pub fn redis_server() -> PathBuf {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .map(|directory| directory.join("redis-server"))
        .find(|candidate| candidate.is_file())
        .expect("redis-server is missing; install it with: apt-get install redis-server")
}

/// Path of `rclone`, which `ops/deps.sh` builds beside our own binaries.
pub fn rclone() -> PathBuf {
    let target = directory();
    let path = target.parent().expect("a profile is a directory").join("tools/bin/rclone");
    assert!(path.is_file(), "{} is missing; build it with: ops/deps.sh test", path.display());
    path
}

/// Root of the repository.
pub fn repository() -> &'static Path {
    let crate_root = Path::new(env!("CARGO_MANIFEST_DIR"));
    crate_root.parent().expect("the crate lies in the repository")
}
