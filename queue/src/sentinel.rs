//! Redis Sentinel: asks Sentinels for the master of the cell, for
//! `redis+sentinel://host:port,host:port/name`.
//!
//! They are asked at each connect, so a connect after a failover finds the new master. Invariant: a
//! connection is only used if its Redis reports to be a master. Asking one Sentinel takes at most
//! `ASK_WITHIN`. Source: the guidelines for Sentinel's clients
//! (redis.io/docs/latest/develop/reference/sentinel-clients).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redis::{AsyncConnectionConfig, Client, cmd};

use crate::access::Access;
use crate::error::QueueError;
use crate::open::open;

/// Schemes of a URL for Sentinels, without and with TLS.
pub const SCHEMES: [&str; 2] = ["redis+sentinel://", "rediss+sentinel://"];
/// Time for a Sentinel's answer. A Sentinel has little other work; after this, the next one is
/// asked.
const ASK_WITHIN: Duration = Duration::from_millis(500);
const PORT: u16 = 26379;

/// Sentinels of one Redis.
#[derive(Debug, Clone)]
pub struct Sentinels {
    nodes: Arc<[Client]>,
    /// Index of the Sentinel that answered last. It is asked first.
    first: Arc<AtomicUsize>,
    name: String,
    /// Part before the host in the URL of the Redis: scheme, user and password.
    before_host: String,
    database: String,
    access: Access,
}

impl Sentinels {
    /// Parses `redis+sentinel://[user:password@]host[:port][,…]/name[/database]`, or
    /// `rediss+sentinel` for TLS to all of them. User and password are those of the Redis. `None`
    /// if it is no such URL.
    pub fn parse(url: &str, access: &Access) -> Option<Self> {
        let (scheme, rest) = SCHEMES
            .iter()
            .find_map(|scheme| Some((scheme.split('+').next()?, url.strip_prefix(scheme)?)))?;
        let (place, path) = rest.split_once('/')?;
        let (user, hosts) =
            place.rsplit_once('@').map_or(("", place), |(user, hosts)| (user, hosts));
        let (name, database) = path.split_once('/').unwrap_or((path, "0"));
        if name.is_empty() || database.parse::<u16>().is_err() {
            return None;
        }
        let nodes: Option<Vec<Client>> =
            hosts.split(',').map(|host| node(scheme, host, access)).collect();
        let user = if user.is_empty() { String::new() } else { format!("{user}@") };
        let sentinels = Self {
            nodes: nodes?.into(),
            first: Arc::default(),
            name: name.to_owned(),
            before_host: format!("{scheme}://{user}"),
            database: database.to_owned(),
            access: access.clone(),
        };
        // A password with characters that a URL may not contain is detected now, not at a failover.
        sentinels.at("localhost", 6379).map(|_| sentinels)
    }

    /// Returns the master, as named by the first Sentinel that answers.
    ///
    /// # Errors
    /// [`QueueError`] of the Sentinel that was asked last.
    pub async fn master(&self) -> Result<Client, QueueError> {
        let first = self.first.load(Ordering::Relaxed);
        let mut outcome = Err(QueueError::Unexpected("no sentinel was asked".to_owned()));
        for number in (first..first + self.nodes.len()).map(|number| number % self.nodes.len()) {
            outcome = self.ask(&self.nodes[number]).await;
            if outcome.is_ok() {
                self.first.store(number, Ordering::Relaxed);
                break;
            }
        }
        outcome
    }

    async fn ask(&self, node: &Client) -> Result<Client, QueueError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(ASK_WITHIN))
            .set_response_timeout(Some(ASK_WITHIN));
        let mut connection = open(node, &config).await?;
        let named: Option<(String, u16)> = cmd("SENTINEL")
            .arg("get-master-addr-by-name")
            .arg(&self.name)
            .query_async(&mut connection)
            .await?;
        let unknown = || QueueError::Unexpected("the sentinel knows no master by that name".into());
        let (host, port) = named.ok_or_else(unknown)?;
        self.at(&host, port).ok_or_else(unknown)
    }

    fn at(&self, host: &str, port: u16) -> Option<Client> {
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        self.access.client(&format!("{}{host}:{port}/{}", self.before_host, self.database))
    }
}

/// Client of a Sentinel. It has certificates like the Redis, and no password.
fn node(scheme: &str, host: &str, access: &Access) -> Option<Client> {
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    let port = if has_port { String::new() } else { format!(":{PORT}") };
    let access = Access { password: None, ..access.clone() };
    (!host.is_empty()).then(|| access.client(&format!("{scheme}://{host}{port}/")))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_sentinels_and_a_master_or_is_none() {
        let good = [
            "redis+sentinel://a,b:26380,[::1]:26381/cell",
            "rediss+sentinel://me:hu%40sh@a:1/cell/3",
            "redis+sentinel://:hush@a/cell",
        ];
        let counts = good.map(|url| Sentinels::parse(url, &Access::default()).unwrap().nodes.len());
        assert_eq!(counts, [3, 1, 1]);
        let bad =
            ["redis://a/0", "redis+sentinel://a", "redis+sentinel://a/", "redis+sentinel:///x"];
        for url in bad.iter().chain(&["redis+sentinel://a,,b/x", "redis+sentinel://a/x/y"]) {
            assert!(Sentinels::parse(url, &Access::default()).is_none(), "{url}");
        }
    }
}
