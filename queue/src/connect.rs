//! Connections to the one Redis of this cell.
//!
//! A connection is made when it is needed and thrown away when it fails: whoever holds one decides
//! what an unanswered request means. Bounded: connecting by [`CONNECT_TIMEOUT`], a request by the
//! budget its caller gives; the appender alone waits as long as the connection lives.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::{TcpSettings, socket2};
use redis::{AsyncConnectionConfig, Client};
use tokio::time::timeout;

use crate::access::Access;
use crate::cluster::{self, Cluster};
use crate::error::QueueError;
use crate::keys::Keys;
use crate::sentinel::{self, Sentinels};

/// A local socket answers at once or not at all; a remote one has this long.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Without a sign of the other machine for so long, a connection is dead.
const DEAD_AFTER: Duration = Duration::from_secs(10);

/// A connection to Redis.
pub type Connection = MultiplexedConnection;

/// Where Redis is, and under which names we keep things there.
#[derive(Debug, Clone)]
pub struct Redis {
    endpoint: Endpoint,
    /// Key names.
    pub keys: Keys,
    unix_socket: bool,
}

#[derive(Debug, Clone)]
enum Endpoint {
    At(Client),
    /// The master that Sentinels name.
    Sentinels(Sentinels),
    /// The node of a cluster that has the cell's keys.
    Cluster(Cluster),
}

impl Redis {
    /// Takes `unix:///path`, `redis://host:port/db`, `rediss://…`; by Sentinels
    /// `redis+sentinel://host:port,host:port/name`; in a cluster `redis+cluster://host:port,host:port`; and these two
    /// with `rediss+`.
    ///
    /// # Errors
    /// A sentence for the operator when the URL is none of these, or the prefix none for a cluster.
    pub fn new(url: &str, prefix: &str) -> Result<Self, String> {
        Self::with_access(url, prefix, &Access::default())
    }

    /// The same with certificates, or a password that is not in the URL.
    ///
    /// # Errors
    /// As [`Redis::new`], and when a certificate is none.
    pub fn with_access(url: &str, prefix: &str, access: &Access) -> Result<Self, String> {
        let forms = "unix:///run/spillway/redis.sock, redis://host:6379/0, rediss://host:6379/0, \
                     redis+sentinel://host:26379,host:26379/name or redis+cluster://host:6379,host:6379";
        let begins_with = |schemes: &[&str]| schemes.iter().any(|scheme| url.starts_with(scheme));
        let (unix_socket, keys) = (url.starts_with("unix:"), Keys::new(prefix));
        let endpoint = if begins_with(&sentinel::SCHEMES) {
            Sentinels::parse(url, access).map(Endpoint::Sentinels)
        } else if begins_with(&cluster::SCHEMES) {
            let has_tag = prefix.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
            if has_tag.is_none_or(|(tag, _)| tag.is_empty()) {
                return Err("in a cluster, REDIS_PREFIX must hold a hash tag, such as {spillway}:"
                    .to_owned());
            }
            Cluster::parse(url, &keys.stream(), access).map(Endpoint::Cluster)
        } else if unix_socket || begins_with(&["redis:", "rediss:"]) {
            access.client(url).map(Endpoint::At)
        } else {
            None
        };
        // No word of the URL: it may hold a password.
        let endpoint = endpoint.ok_or_else(|| format!("must be of the form {forms}"))?;
        Ok(Self { endpoint, keys, unix_socket })
    }

    /// Whether Redis runs on this machine for certain.
    pub fn is_local(&self) -> bool {
        self.unix_socket
    }

    /// Whether it is reached as a cluster.
    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.endpoint, Endpoint::Cluster(_))
    }

    /// Connects; requests fail after `budget` without an answer (`None`: they wait for as long as
    /// the connection lives).
    ///
    /// # Errors
    /// [`QueueError`] when Redis does not let us in.
    pub async fn connect(&self, budget: Option<Duration>) -> Result<Connection, QueueError> {
        // Both are written out: the crate's defaults (500 ms for a response) would turn a slow
        // fsync into an unknown outcome.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(budget);
        let client = match &self.endpoint {
            Endpoint::At(client) => {
                return Ok(client.get_multiplexed_async_connection_with_config(&config).await?);
            }
            Endpoint::Sentinels(sentinels) => sentinels.master().await?,
            Endpoint::Cluster(cluster) => cluster.node().await?,
        };
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        let unknown = || QueueError::Unexpected("it does not say whether it is a master".into());
        timeout(CONNECT_TIMEOUT, expect_master(&mut connection))
            .await
            .unwrap_or_else(|_| Err(unknown()))?;
        Ok(connection)
    }
}

/// Sentinels may name one that is not the master any more, or not yet.
async fn expect_master(connection: &mut Connection) -> Result<(), QueueError> {
    let role: Vec<redis::Value> = redis::cmd("ROLE").query_async(connection).await?;
    let role = role.into_iter().next().map(redis::from_redis_value::<String>);
    match role {
        Some(Ok(role)) if role == "master" => Ok(()),
        _ => Err(QueueError::Unexpected("a redis that was named is no master".to_owned())),
    }
}

/// A Redis on another machine may vanish without a word, and the appender waits for its reply for
/// as long as the connection lives: so a dead connection must be noticed.
pub(crate) fn tcp_settings() -> TcpSettings {
    let keepalive = socket2::TcpKeepalive::new()
        .with_time(DEAD_AFTER / 2)
        .with_interval(Duration::from_secs(1))
        .with_retries(5);
    TcpSettings::default().set_nodelay(true).set_keepalive(keepalive).set_user_timeout(DEAD_AFTER)
}
