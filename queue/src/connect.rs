//! Connections to the one Redis of this cell.
//!
//! A connection is made when it is needed and dropped when it fails. Its holder decides what an
//! unanswered request means. Connecting takes at most [`CONNECT_TIMEOUT`]; a request takes at most
//! the budget that its caller gives. Only the appender waits as long as the connection lives.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client};
use tokio::time::timeout;

use crate::access::Access;
use crate::cluster::{self, Cluster};
use crate::error::QueueError;
use crate::keys::Keys;
use crate::open::open;
use crate::sentinel::{self, Sentinels};

/// Time limit for connecting. A local socket answers at once or not at all; a remote one may need
/// time.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// A connection to Redis.
pub type Connection = MultiplexedConnection;

/// Endpoint of Redis, and the names of our keys there.
#[derive(Debug, Clone)]
pub struct Redis {
    endpoint: RedisEndpoint,
    /// Key names.
    pub keys: Keys,
    unix_socket: bool,
}

#[derive(Debug, Clone)]
enum RedisEndpoint {
    At(Client),
    /// The master that Sentinels name.
    Sentinels(Sentinels),
    /// The node of a cluster that has the cell's keys.
    Cluster(Cluster),
}

impl Redis {
    /// Parses `unix:///path`, `redis://host:port/db` or `rediss://…`; for Sentinels
    /// `redis+sentinel://host:port,host:port/name`; for a cluster
    /// `redis+cluster://host:port,host:port`. The last two also exist with `rediss+`.
    ///
    /// # Errors
    /// A sentence for the operator, when the URL has none of these forms or the prefix does not
    /// suit a cluster.
    pub fn new(url: &str, prefix: &str) -> Result<Self, String> {
        Self::with_access(url, prefix, &Access::default())
    }

    /// Does the same as [`Redis::new`], with certificates or with a password that is not in the
    /// URL.
    ///
    /// # Errors
    /// As [`Redis::new`], and when a certificate is invalid.
    pub fn with_access(url: &str, prefix: &str, access: &Access) -> Result<Self, String> {
        let forms = "unix:///run/spillway/redis.sock, redis://host:6379/0, rediss://host:6379/0, \
                     redis+sentinel://host:26379,host:26379/name or redis+cluster://host:6379,host:6379";
        let begins_with = |schemes: &[&str]| schemes.iter().any(|scheme| url.starts_with(scheme));
        let unix_socket = url.starts_with("unix:");
        let keys = Keys::new(prefix);
        let endpoint = if begins_with(&sentinel::SCHEMES) {
            Sentinels::parse(url, access).map(RedisEndpoint::Sentinels)
        } else if begins_with(&cluster::SCHEMES) {
            let has_tag = prefix.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
            if has_tag.is_none_or(|(tag, _)| tag.is_empty()) {
                return Err("in a cluster, REDIS_PREFIX must hold a hash tag, such as {spillway}:"
                    .to_owned());
            }
            Cluster::parse(url, &keys.stream(), access).map(RedisEndpoint::Cluster)
        } else if unix_socket || begins_with(&["redis:", "rediss:"]) {
            access.client(url).map(RedisEndpoint::At)
        } else {
            None
        };
        // Nothing of the URL is repeated: it may hold a password.
        let endpoint = endpoint.ok_or_else(|| format!("must be of the form {forms}"))?;
        Ok(Self { endpoint, keys, unix_socket })
    }

    /// True if Redis certainly runs on this machine.
    pub fn is_local(&self) -> bool {
        self.unix_socket
    }

    /// True if Redis is reached as a cluster.
    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.endpoint, RedisEndpoint::Cluster(_))
    }

    /// Connects. Requests fail after `budget` without an answer. With `None` they wait as long as
    /// the connection lives.
    ///
    /// # Errors
    /// [`QueueError`] when connecting fails.
    pub async fn connect(&self, budget: Option<Duration>) -> Result<Connection, QueueError> {
        // Both are set: the redis crate's default (500 ms for a response) would turn a slow fsync
        // into an unknown outcome.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(budget);
        let client = match &self.endpoint {
            RedisEndpoint::At(client) => {
                return open(client, &config).await;
            }
            RedisEndpoint::Sentinels(sentinels) => sentinels.master().await?,
            RedisEndpoint::Cluster(cluster) => cluster.node().await?,
        };
        let mut connection = open(&client, &config).await?;
        let unknown = || QueueError::Unexpected("it does not say whether it is a master".into());
        timeout(CONNECT_TIMEOUT, expect_master(&mut connection))
            .await
            .unwrap_or_else(|_| Err(unknown()))?;
        Ok(connection)
    }
}

/// Fails if Redis is no master: Sentinels may name one that is not the master any more, or not yet.
async fn expect_master(connection: &mut Connection) -> Result<(), QueueError> {
    let role: Vec<redis::Value> = redis::cmd("ROLE").query_async(connection).await?;
    let role = role.into_iter().next().map(redis::from_redis_value::<String>);
    match role {
        Some(Ok(role)) if role == "master" => Ok(()),
        _ => Err(QueueError::Unexpected("a redis that was named is no master".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use super::*;

    #[tokio::test]
    async fn an_error_names_the_place_that_cannot_be_reached_and_no_password() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        for (url, place) in [
            ("unix:///nonexistent/redis.sock?pass=hush".to_owned(), "/nonexistent/redis.sock: "),
            (format!("redis://me:hush@{free}/0"), &*format!("{free}: ")),
        ] {
            let connected = Redis::new(&url, "x:").unwrap().connect(None).await;
            let error = connected.map(|_| ()).expect_err("nobody is there");
            let told = format!("{error}: {}", error.source().unwrap());
            assert!(told.starts_with(&format!("redis is unreachable: {place}")), "{told}");
            assert!(!told.contains("hush"), "{told}");
        }
    }
}
