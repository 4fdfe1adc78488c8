//! Connections to the one Redis of this cell.
//!
//! A connection is made when it is needed and thrown away when it fails: whoever holds one decides
//! what an unanswered request means. Bounded: connecting by [`CONNECT_TIMEOUT`], a request by the
//! budget its caller gives; the appender alone waits as long as the connection lives.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::{TcpSettings, socket2};
use redis::{AsyncConnectionConfig, Client, IntoConnectionInfo};

use crate::error::QueueError;
use crate::keys::Keys;

/// A local socket answers at once or not at all; a remote one has this long.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Without a sign of the other machine for so long, a connection is dead.
const DEAD_AFTER: Duration = Duration::from_secs(10);

/// A connection to Redis.
pub type Connection = MultiplexedConnection;

/// Where Redis is, and under which names we keep things there.
#[derive(Debug, Clone)]
pub struct Redis {
    client: Client,
    /// Key names.
    pub keys: Keys,
    unix_socket: bool,
}

impl Redis {
    /// Takes `unix:///path`, `redis://host:port/db` or `rediss://…`.
    ///
    /// # Errors
    /// A sentence for the operator when the URL is none of these.
    pub fn new(url: &str, prefix: &str) -> Result<Self, String> {
        let forms = "unix:///run/spillway/redis.sock, redis://host:6379/0 or rediss://host:6379/0";
        let unix_socket = url.starts_with("unix:");
        if !(unix_socket || url.starts_with("redis:") || url.starts_with("rediss:")) {
            return Err(format!("must be of the form {forms}"));
        }
        // The error's own text may repeat the URL, and with it a password.
        let client = url
            .into_connection_info()
            .map(|info| info.set_tcp_settings(tcp_settings()))
            .and_then(Client::open)
            .map_err(|_| format!("must be of the form {forms}"))?;
        Ok(Self { client, keys: Keys::new(prefix), unix_socket })
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
        Ok(self.client.get_multiplexed_async_connection_with_config(&config).await?)
    }
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
