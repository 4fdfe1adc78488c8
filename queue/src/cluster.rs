//! Redis Cluster: finds the node that holds the cell's keys, for
//! `redis+cluster://host:port,host:port`.
//!
//! All keys of a cell share one hash slot: the prefix holds a hash tag, `{spillway}:`. The node
//! that holds the slot is asked for at each connect, so a connect after a failover or a move of the
//! slot finds the new one. A node that lost the slot answers MOVED, and that ends the connection.
//! Asking one node takes at most `ASK_WITHIN`. Source: the cluster specification
//! (redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redis::{AsyncConnectionConfig, Client, Value, cmd, from_redis_value_ref};

use crate::access::Access;
use crate::error::QueueError;
use crate::open::open;

/// Schemes of a URL for a cluster, without and with TLS.
pub const SCHEMES: [&str; 2] = ["redis+cluster://", "rediss+cluster://"];
/// Time for a node's answer. After it, the next node is asked.
const ASK_WITHIN: Duration = Duration::from_millis(500);
const PORT: u16 = 6379;
const SLOTS: u16 = 16384;

/// Nodes of a cluster, and the slot that holds the cell's keys.
#[derive(Debug, Clone)]
pub struct Cluster {
    /// Nodes to ask, each with its host name for answers that contain none.
    nodes: Arc<[(String, Client)]>,
    /// Index of the node that answered last. It is asked first.
    first: Arc<AtomicUsize>,
    slot: u16,
    /// Part before the host in the URL of a node: scheme, user and password.
    before_host: String,
    access: Access,
}

impl Cluster {
    /// Parses `redis+cluster://[user:password@]host[:port][,…]`, or `rediss+cluster` for TLS to all
    /// nodes, and takes a key of the cell. `None` if it is no such URL.
    pub fn parse(url: &str, key: &str, access: &Access) -> Option<Self> {
        let (scheme, rest) = SCHEMES
            .iter()
            .find_map(|scheme| Some((scheme.split('+').next()?, url.strip_prefix(scheme)?)))?;
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (user, hosts) = rest.rsplit_once('@').unwrap_or(("", rest));
        let user = if user.is_empty() { String::new() } else { format!("{user}@") };
        let before_host = format!("{scheme}://{user}");
        let nodes: Option<Vec<_>> = hosts
            .split(',')
            .map(|host| {
                let has_port =
                    host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
                let port = if has_port { String::new() } else { format!(":{PORT}") };
                let name = if has_port { host.rsplit_once(':')?.0 } else { host };
                let client = access.client(&format!("{before_host}{host}{port}/"))?;
                (!host.is_empty() && !host.contains('/')).then(|| (name.to_owned(), client))
            })
            .collect();
        let first = Arc::default();
        let slot = slot_of(key.as_bytes());
        Some(Self { nodes: nodes?.into(), first, slot, before_host, access: access.clone() })
    }

    /// Returns the node that holds the cell's keys, as named by the first node that answers.
    ///
    /// # Errors
    /// [`QueueError`] of the node that was asked last.
    pub async fn node(&self) -> Result<Client, QueueError> {
        let first = self.first.load(Ordering::Relaxed);
        let mut outcome = Err(QueueError::Unexpected("no node was asked".to_owned()));
        for number in (first..first + self.nodes.len()).map(|number| number % self.nodes.len()) {
            outcome = self.ask(&self.nodes[number]).await;
            if outcome.is_ok() {
                self.first.store(number, Ordering::Relaxed);
                break;
            }
        }
        outcome
    }

    async fn ask(&self, (asked, node): &(String, Client)) -> Result<Client, QueueError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(ASK_WITHIN))
            .set_response_timeout(Some(ASK_WITHIN));
        let mut connection = open(node, &config).await?;
        let ranges: Vec<Vec<Value>> =
            cmd("CLUSTER").arg("SLOTS").query_async(&mut connection).await?;
        let unknown =
            || QueueError::Unexpected("no node of the cluster has the cell's slot".into());
        let (host, port) =
            ranges.iter().find_map(|range| master_of(range, self.slot)).ok_or_else(unknown)?;
        let host = if host.is_empty() { asked.clone() } else { host };
        let host =
            if host.contains(':') && !host.starts_with('[') { format!("[{host}]") } else { host };
        let url = format!("{}{host}:{port}/", self.before_host);
        self.access.client(&url).ok_or_else(unknown)
    }
}

/// Host and port of the master of a range of slots, if the range holds `slot`.
fn master_of(range: &[Value], slot: u16) -> Option<(String, u16)> {
    let [first, last, master, ..] = range else { return None };
    let number = |value: &Value| from_redis_value_ref::<u16>(value).ok();
    if !(number(first)?..=number(last)?).contains(&slot) {
        return None;
    }
    let Value::Array(master) = master else { return None };
    let host = from_redis_value_ref::<Option<String>>(master.first()?).ok()?.unwrap_or_default();
    Some((host, number(master.get(1)?)?))
}

/// Hash slot of a key: CRC16 of its hash tag, or of the whole key if there is none.
fn slot_of(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let close = rest.iter().position(|byte| *byte == b'}')?;
        (close > 0).then(|| &rest[..close])
    });
    tag.unwrap_or(key).iter().fold(0u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    }) % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_specification() {
        // The check value of CRC16/XMODEM, and results of CLUSTER KEYSLOT.
        assert_eq!(slot_of(b"123456789"), 0x31c3);
        assert_eq!(slot_of(b"{user1000}.following"), slot_of(b"user1000"));
        assert_eq!(slot_of(b"foo"), 12182);
        assert_eq!(slot_of(b"foo{}{bar}"), slot_of(b"foo{}{bar}"));
        assert_ne!(slot_of(b"foo{}{bar}"), slot_of(b"bar"));
    }

    #[test]
    fn a_url_names_nodes_or_is_none() {
        let parse = |url: &str| Cluster::parse(url, "{spillway}:in", &Access::default());
        let good = ["redis+cluster://a,b:6380,[::1]:6381", "rediss+cluster://me:hu%40sh@a/"];
        let counts = good.map(|url| parse(url).expect(url).nodes.len());
        assert_eq!(counts, [3, 1]);
        for url in ["redis://a", "redis+cluster://", "redis+cluster://a,,b", "redis+cluster://a/1"]
        {
            assert!(parse(url).is_none(), "{url}");
        }
    }

    #[test]
    fn the_master_of_a_slot_is_the_first_node_of_its_range() {
        let node =
            |host: &str, port| Value::Array(vec![Value::BulkString(host.into()), Value::Int(port)]);
        let range = [Value::Int(0), Value::Int(100), node("a", 1), node("b", 2)];
        assert_eq!(master_of(&range, 100), Some(("a".to_owned(), 1)));
        assert_eq!(master_of(&range, 101), None);
        let unnamed = [Value::Int(0), Value::Int(1), Value::Array(vec![Value::Nil, Value::Int(3)])];
        assert_eq!(master_of(&unnamed, 0), Some((String::new(), 3)));
    }
}
