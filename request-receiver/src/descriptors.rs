//! File descriptors: the limit of the process, and the part of it that connections may take.
//!
//! Invariant: connections, refused ones included, never take the descriptors that Redis, the admin
//! port, the overflow log and the logs need.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use spillway_process::start::Misconfigured;

/// Kept for the listeners, the watch over Redis, the admin port, the overflow log's files, the logs
/// and the runtime.
const RESERVED: usize = 64;
/// Kept for each shard: its runtime, its connection to Redis, and one more while that is replaced.
const RESERVED_PER_SHARD: usize = 8;
/// Fewest connections to start with, unless fewer are asked for. With fewer, senders such as nginx
/// would be refused in quiet times.
const CONNECTIONS_MIN: usize = 64;
/// Connections over the limit that are answered 503 at once. Further ones wait to be accepted.
const REFUSED_MAX: usize = 256;
const _: () = assert!(RESERVED <= CONNECTIONS_MIN, "as many serve as are kept for the rest");
/// Divisor: refusals may take this part of scarce descriptors.
const REFUSED_PART: usize = 8;

/// Limits on the number of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Connections that are served at once.
    pub served: usize,
    /// Connections that are being refused at once.
    pub refused: usize,
}

/// Raises the limit of open files as far as allowed, and fits MAX_CONNECTIONS into it.
///
/// # Errors
/// If too few connections would be left.
pub fn connection_limits(
    connections_max: usize,
    shards: usize,
) -> Result<ConnectionLimits, Misconfigured> {
    let open_files_max = raise_limit();
    let limits = fit(connections_max, shards, open_files_max)?;
    if limits.served < connections_max {
        tracing::warn!(
            max_connections = connections_max,
            lowered_to = limits.served,
            open_files_max,
            "MAX_CONNECTIONS is lowered: the limit of open files (ulimit -n, LimitNOFILE=) allows no more"
        );
    }
    Ok(limits)
}

/// Raises the soft limit of open files to the hard one. Returns the limit in force. `None` if it is
/// unlimited.
fn raise_limit() -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return current;
    }
    match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => maximum,
        Err(error) => {
            tracing::warn!(%error, soft = current, hard = maximum, "the limit of open files stays low");
            current
        }
    }
}

fn fit(
    connections_max: usize,
    shards: usize,
    open_files_max: Option<u64>,
) -> Result<ConnectionLimits, Misconfigured> {
    let open_files_max =
        open_files_max.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
    let reserved = RESERVED + RESERVED_PER_SHARD * shards;
    let room = open_files_max.saturating_sub(reserved);
    let refused = room.saturating_sub(connections_max).max(room / REFUSED_PART).min(REFUSED_MAX);
    let served = connections_max.min(room - refused);
    if served < connections_max.min(CONNECTIONS_MIN) {
        return Err(Misconfigured(format!(
            "MAX_CONNECTIONS: of {open_files_max} open files (ulimit -n, LimitNOFILE=), {reserved} are \
             kept for Redis and the rest; that leaves {served} connections: allow more open files"
        )));
    }
    Ok(ConnectionLimits { served, refused })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(served: usize, refused: usize) -> Option<ConnectionLimits> {
        Some(ConnectionLimits { served, refused })
    }

    #[test]
    fn connections_leave_descriptors_for_everything_else() {
        let fitted = |connections_max, open_files| fit(connections_max, 2, open_files).ok();
        // Enough for all.
        assert_eq!(fitted(10_000, None), limits(10_000, 256));
        assert_eq!(fitted(10_000, Some(65_536)), limits(10_000, 256));
        assert_eq!(fitted(10_000, Some(10_000 + 256 + 80)), limits(10_000, 256));
        // First, fewer are answered that they are refused. Then fewer are served.
        assert_eq!(fitted(800, Some(1024)), limits(800, 144));
        assert_eq!(fitted(10_000, Some(1024)), limits(826, 118));
        assert_eq!(fitted(10_000, Some(256)), limits(154, 22));
        // Too few.
        assert_eq!(fitted(10_000, Some(150)), None);
        assert_eq!(fitted(10_000, Some(0)), None);
        // As few as asked for.
        assert_eq!(fitted(4, Some(100)), limits(4, 16));
        assert_eq!(fitted(4, Some(82)), None);
    }

    #[test]
    fn the_soft_limit_becomes_the_hard_one() {
        let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
        // More than the tests of this process need at the same time.
        setrlimit(Resource::Nofile, Rlimit { current: Some(500), maximum }).unwrap();
        assert_eq!(raise_limit(), maximum);
        assert_eq!(getrlimit(Resource::Nofile).current, maximum);
    }

    #[test]
    fn what_is_left_is_never_exceeded() {
        for open_files in 0..3000 {
            for connections_max in [1, 63, 64, 65, 1000, 1_000_000] {
                let Ok(limits) = fit(connections_max, 4, Some(open_files)) else { continue };
                let taken = (limits.served + limits.refused + RESERVED) as u64;
                assert!(taken <= open_files, "{limits:?} of {open_files}");
                assert!(limits.served <= connections_max, "{limits:?}");
            }
        }
    }
}
