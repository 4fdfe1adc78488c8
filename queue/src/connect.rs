//! Connections to the one Redis of this cell.
//!
//! A connection is made when it is needed and thrown away when it fails: whoever holds one decides
//! what an unanswered request means. Bounded: connecting by [`CONNECT_TIMEOUT`], a request by the
//! budget its caller gives; the appender alone waits as long as the connection lives.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::{TcpSettings, socket2};
use redis::{AsyncConnectionConfig, Client, IntoConnectionInfo};
use tokio::time::timeout;

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
    place: Place,
    /// Key names.
    pub keys: Keys,
    unix_socket: bool,
}

#[derive(Debug, Clone)]
enum Place {
    At(Client),
    /// Wherever they say.
    By(Sentinels),
}

impl Redis {
    /// Takes `unix:///path`, `redis://host:port/db`, `rediss://…` or, by Sentinels,
    /// `redis+sentinel://host:port,host:port/name` or `rediss+sentinel://…`.
    ///
    /// # Errors
    /// A sentence for the operator when the URL is none of these.
    pub fn new(url: &str, prefix: &str) -> Result<Self, String> {
        let forms = "unix:///run/spillway/redis.sock, redis://host:6379/0, rediss://host:6379/0 or \
                     redis+sentinel://host:26379,host:26379/name";
        let unix_socket = url.starts_with("unix:");
        let place = if sentinel::SCHEMES.iter().any(|scheme| url.starts_with(scheme)) {
            Sentinels::parse(url).map(Place::By)
        } else if unix_socket || url.starts_with("redis:") || url.starts_with("rediss:") {
            client(url).map(Place::At)
        } else {
            None
        };
        // No word of the URL: it may hold a password.
        let place = place.ok_or_else(|| format!("must be of the form {forms}"))?;
        Ok(Self { place, keys: Keys::new(prefix), unix_socket })
    }

    /// Whether Redis runs on this machine for certain.
    pub fn is_local(&self) -> bool {
        self.unix_socket
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
        match &self.place {
            Place::At(client) => {
                Ok(client.get_multiplexed_async_connection_with_config(&config).await?)
            }
            Place::By(sentinels) => {
                let client = sentinels.master().await?;
                let mut connection =
                    client.get_multiplexed_async_connection_with_config(&config).await?;
                timeout(CONNECT_TIMEOUT, expect_master(&mut connection)).await.unwrap_or_else(
                    |_| Err(QueueError::Unexpected("it does not say whether it is one".into())),
                )?;
                Ok(connection)
            }
        }
    }
}

/// Sentinels may name one that is not the master any more, or not yet.
async fn expect_master(connection: &mut Connection) -> Result<(), QueueError> {
    let role: Vec<redis::Value> = redis::cmd("ROLE").query_async(connection).await?;
    let role = role.into_iter().next().map(redis::from_redis_value::<String>);
    match role {
        Some(Ok(role)) if role == "master" => Ok(()),
        _ => Err(QueueError::Unexpected("sentinel named a redis that is no master".to_owned())),
    }
}

/// A client for a URL; `None` if it is none. The crate's own error may repeat it, and with it a password.
pub(crate) fn client(url: &str) -> Option<Client> {
    let info = url.into_connection_info().ok()?.set_tcp_settings(tcp_settings());
    Client::open(info).ok()
}

/// A Redis on another machine may vanish without a word, and the appender waits for its reply for
/// as long as the connection lives: so a dead connection must be noticed.
fn tcp_settings() -> TcpSettings {
    let keepalive = socket2::TcpKeepalive::new()
        .with_time(DEAD_AFTER / 2)
        .with_interval(Duration::from_secs(1))
        .with_retries(5);
    TcpSettings::default().set_nodelay(true).set_keepalive(keepalive).set_user_timeout(DEAD_AFTER)
}
