//! The cell of a command (its Redis), and one of its consumers.

use std::time::Duration;

use clap::Args;
use spillway_process::Checker;
use spillway_process::redis_args::RedisArgs;
use spillway_queue::consumers::{HTTP, KAFKA};
use spillway_queue::status::{self, CellStatus};
use spillway_queue::{Connection, QueueError, Redis};

use crate::failure::Failure;
use crate::socket::denial;

/// Response timeout of Redis. No request of this command takes that long.
const PATIENCE: Duration = Duration::from_secs(10);

/// Redis of the cell, as given on the command line.
#[derive(Debug, Clone, Args)]
pub(crate) struct CellArgs {
    #[command(flatten)]
    redis: RedisArgs,
}

/// One consumer of the cell, as given on the command line.
#[derive(Debug, Args)]
pub(crate) struct ConsumerArgs {
    /// The cell.
    #[command(flatten)]
    pub cell: CellArgs,

    /// Name of the consumer; each has its own view of the queue and its own dead letters; default: the
    /// only one beside an archive, or http; for a command that changes something: http, if it is there
    /// and no others than http, kafka and archive
    #[arg(short, long, global = true)]
    consumer: Option<String>,
}

impl ConsumerArgs {
    /// Name of the consumer that is meant: the one that was given, the only one that delivers, or
    /// `http`.
    pub(crate) async fn resolve(&self) -> Result<String, Failure> {
        if let Some(consumer) = &self.consumer {
            return Ok(consumer.clone());
        }
        let (redis, mut connection) = self.cell.connect().await?;
        meant(&status::read(&redis, &mut connection).await?)
    }

    /// Name of the consumer that a command changes: the one that was given, or `http` of a cell that
    /// has no others than the default ones.
    pub(crate) async fn resolve_change(&self) -> Result<String, Failure> {
        if let Some(consumer) = &self.consumer {
            return Ok(consumer.clone());
        }
        let (redis, mut connection) = self.cell.connect().await?;
        meant_to_change(&status::read(&redis, &mut connection).await?)
    }
}

/// Consumer that is meant if none is named. An archive is meant only if there is nothing else.
pub(crate) fn meant(status: &CellStatus) -> Result<String, Failure> {
    let all: Vec<&str> = status.consumers.iter().map(|known| known.name.as_str()).collect();
    let delivering = status.consumers.iter().filter(|known| known.delivers());
    let delivering: Vec<&str> = delivering.map(|known| known.name.as_str()).collect();
    match (&delivering[..], &all[..]) {
        ([only], _) | ([], [only]) => Ok((*only).to_owned()),
        ([], _) => Ok(HTTP.to_owned()),
        (several, _) if several.contains(&HTTP) => Ok(HTTP.to_owned()),
        (_, all) => Err(Failure::Usage(format!(
            "there are several consumers: name one of them with --consumer: {}",
            all.join(", ")
        ))),
    }
}

/// Consumer that is meant to be changed if none is named. It never depends on which of several happen to
/// be registered: it is `http`, or none.
fn meant_to_change(status: &CellStatus) -> Result<String, Failure> {
    let mut all: Vec<&str> = status.consumers.iter().map(|known| known.name.as_str()).collect();
    all.sort_unstable();
    let mut delivering = status.consumers.iter().filter(|known| known.delivers());
    let is_default = delivering.all(|known| [HTTP, KAFKA].contains(&known.name.as_str()));
    if all.is_empty() || (is_default && all.contains(&HTTP)) {
        return Ok(HTTP.to_owned());
    }
    Err(Failure::Usage(format!(
        "this changes one consumer: name it with --consumer: {}",
        all.join(", ")
    )))
}

/// True if no consumer was ever started, and `consumer` is the downstreamer's. Everything in the
/// main stream waits for it then: it will begin at the oldest entry.
pub(crate) fn is_first(consumer: &str, status: &CellStatus) -> bool {
    status.consumers.is_empty() && consumer == HTTP
}

/// Failure for an unknown consumer. It lists the known consumers.
pub(crate) fn unknown(consumer: &str, status: &CellStatus) -> Failure {
    let known: Vec<_> = status.consumers.iter().map(|known| known.name.as_str()).collect();
    Failure::Failed(match known.is_empty() {
        true => format!(
            "no consumer is named {consumer}, because none is registered: start a downstreamer, or \
             register it ahead with `spillway consumers add {consumer}`"
        ),
        false => format!("no consumer is named {consumer}; there is {}", known.join(", ")),
    })
}

impl CellArgs {
    /// Creates a value from known settings.
    pub(crate) fn new(redis_url: String, redis_prefix: String) -> Self {
        Self { redis: RedisArgs::new(redis_url, redis_prefix) }
    }

    /// Returns the Redis handle, not yet connected.
    pub(crate) fn redis(&self) -> Result<Redis, Failure> {
        let mut checker = Checker::default();
        let redis = self.redis.check(&mut checker);
        Ok(checker.finish(redis)?)
    }

    /// Returns the Redis handle and a connection.
    pub(crate) async fn connect(&self) -> Result<(Redis, Connection), Failure> {
        let redis = self.redis()?;
        match redis.connect(Some(PATIENCE)).await {
            Ok(connection) => Ok((redis, connection)),
            Err(error) => Err(self.unconnected(error)),
        }
    }

    /// Failure of a connection. It says so if this user may not open the socket.
    pub(crate) fn unconnected(&self, error: QueueError) -> Failure {
        match (error, denial(&self.redis.redis_url)) {
            (QueueError::Unreachable(_), Some(message)) => Failure::Denied(message),
            (error, _) => error.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use spillway_queue::status::ConsumerStatus;

    use super::*;

    /// Status of a cell with these consumers, none of which ever ran.
    fn cell(names: &[&str]) -> CellStatus {
        let of =
            |name: &&str| ConsumerStatus { name: (*name).to_owned(), ..ConsumerStatus::default() };
        CellStatus { consumers: names.iter().map(of).collect(), ..CellStatus::default() }
    }

    #[test]
    fn a_command_that_changes_something_never_guesses_among_named_consumers() {
        let meant = |names: &[&str]| meant_to_change(&cell(names));
        for names in [&["http"][..], &[], &["http", "kafka"], &["archive", "http", "kafka"]] {
            assert_eq!(meant(names).expect("http"), "http", "{names:?}");
        }
        let unclear = [
            &["billing"][..],
            &["kafka"],
            &["archive"],
            &["archive", "billing"],
            &["billing", "http"],
            &["audit", "http", "kafka"],
        ];
        for names in unclear {
            let told = meant(names).expect_err("any of them").to_string();
            assert!(told.ends_with(&format!("--consumer: {}", names.join(", "))), "{told}");
        }
    }

    #[test]
    fn without_a_name_the_only_consumer_is_meant_or_http() {
        let meant = |names: &[&str]| meant(&cell(names));
        assert_eq!(meant(&[]).expect("http"), "http");
        assert_eq!(meant(&["kafka"]).expect("the only one"), "kafka");
        assert_eq!(meant(&["billing", "http", "kafka"]).expect("http"), "http");
        let told = meant(&["billing", "kafka"]).expect_err("either").to_string();
        assert!(told.ends_with("--consumer: billing, kafka"), "{told}");
        assert_eq!(meant(&["archive", "billing"]).expect("the only one"), "billing");
        assert_eq!(meant(&["archive", "http", "kafka"]).expect("http"), "http");
        assert_eq!(meant(&["archive"]).expect("nothing else is there"), "archive");
        let told = meant(&["archive", "billing", "kafka"]).expect_err("either").to_string();
        assert!(told.ends_with("--consumer: archive, billing, kafka"), "{told}");
    }
}
