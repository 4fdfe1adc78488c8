//! Appends packs, one at a time: never a second one before the outcome of the first is known.
//!
//! Invariant: [`Appender::send`] returns `Ok` only after Redis confirmed, which under
//! `appendfsync always` is after its fsync. An append whose connection broke is
//! [`AppendError::Unknown`]: it may lie in the stream, so it must be reported neither as stored nor
//! as lost.

use rand::RngExt;
use redis::{RedisError, RedisResult, Value, cmd};
use spillway_webhook::StreamId;

use crate::connect::{CONNECT_TIMEOUT, Connection, Redis};
use crate::error::QueueError;
use crate::gaps::{RedisRun, read_run};

/// Holder of the one connection on which packs are appended.
pub struct Appender {
    redis: Redis,
    connection: Option<Connection>,
    /// Part of the name by which Redis knows the connection, or the last one.
    name: u64,
}

/// Ends connections of appenders from Redis' side when an append got no answer. What was sent on
/// such a connection may still be on its way, and must not arrive after what is sent later.
pub struct Fence {
    redis: Redis,
    /// Name of one connection. `None`: all appenders to this stream.
    name: Option<u64>,
}

/// An append that is ready to be sent.
pub struct Append(redis::Pipeline);

/// Reason why an append did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    /// Redis refused it, or was never reached. The pack is not stored.
    #[error("not stored")]
    NotStored(#[source] QueueError),
    /// The connection broke after the pack was sent. The pack may be stored.
    #[error("it is unknown whether it was stored")]
    Unknown(#[source] QueueError),
}

impl AppendError {
    /// True if the next append needs another connection.
    fn is_unreachable(&self) -> bool {
        matches!(self, Self::Unknown(_) | Self::NotStored(QueueError::Unreachable(_)))
    }
}

impl Appender {
    /// Creates an appender, which connects with its first append.
    pub fn new(redis: Redis) -> Self {
        Self { redis, connection: None, name: rand::rng().random() }
    }

    /// Returns a fence that ends the connection of this appender, or the last one if there is none, for
    /// an append that was given up. Later connections have other names.
    pub fn fence(&self) -> Fence {
        Fence { redis: self.redis.clone(), name: Some(self.name) }
    }

    /// Appends a pack of `count` webhooks and counts them, in one transaction. Waits for the answer
    /// as long as the connection lives. A time limit is up to the caller.
    ///
    /// # Errors
    /// [`AppendError`]; both variants leave the appender ready for the next pack.
    pub async fn append(&mut self, pack: &[u8], count: u32) -> Result<StreamId, AppendError> {
        let append = self.prepare(pack, count);
        self.send(append).await
    }

    /// Prepares an append for [`send`](Self::send). It holds a copy of the pack, so it can outlive
    /// the pack.
    pub fn prepare(&self, pack: &[u8], count: u32) -> Append {
        let keys = &self.redis.keys;
        // MULTI and EXEC are written out, because the redis crate's own keep only one of the
        // replies. The reason for a refusal can stand in any of them.
        let mut transaction = redis::pipe();
        transaction
            .cmd("MULTI")
            .cmd("XADD")
            .arg(keys.stream())
            .arg("*")
            .arg("p")
            .arg(pack)
            .cmd("HINCRBY")
            .arg(keys.counts())
            .arg("appended")
            .arg(count)
            .cmd("EXEC")
            .ignore_errors();
        Append(transaction)
    }

    /// Sends a prepared append, as [`append`](Self::append) does.
    ///
    /// # Errors
    /// [`AppendError`]; both variants leave the appender ready for the next pack.
    pub async fn send(&mut self, append: Append) -> Result<StreamId, AppendError> {
        let connection = self.connected().await.map_err(AppendError::NotStored)?;
        let outcome = match append.0.query_async(connection).await {
            Ok(replies) => outcome(replies),
            Err(error) => Err(AppendError::Unknown(error.into())),
        };
        if outcome.as_ref().is_err_and(AppendError::is_unreachable) {
            self.connection = None;
        }
        outcome
    }

    /// Connects, unless there is a connection. Returns true if there was none.
    ///
    /// # Errors
    /// [`QueueError`] when connecting fails. The next append tries again.
    pub async fn connect(&mut self) -> Result<bool, QueueError> {
        let is_new = self.connection.is_none();
        self.connected().await.map(|_| is_new)
    }

    /// Reads which run of Redis the connection is of, and the end of the stream there.
    ///
    /// # Errors
    /// [`QueueError`] from Redis.
    pub async fn read_run(&mut self) -> Result<RedisRun, QueueError> {
        let redis = self.redis.clone();
        read_run(&redis, self.connected().await?).await
    }

    /// Connects again, after Redis is known to have gone and come back since the last append.
    ///
    /// # Errors
    /// [`QueueError`] when connecting fails. The next append tries again.
    pub async fn reconnect(&mut self) -> Result<(), QueueError> {
        self.connection = None;
        self.connect().await.map(|_| ())
    }

    /// Drops the connection, after Redis is known to have gone and come back since the last append.
    /// The next append connects, within its caller's time.
    pub fn disconnect(&mut self) {
        self.connection = None;
    }

    async fn connected(&mut self) -> Result<&mut Connection, QueueError> {
        if self.connection.is_none() {
            let mut connection = self.redis.connect(None).await?;
            self.name = rand::rng().random();
            // Without this permission there is no fence. Everything else works.
            let mut name = cmd("CLIENT");
            name.arg("SETNAME").arg(client_name(&self.redis, Some(self.name)));
            match name.query_async::<()>(&mut connection).await.map_err(QueueError::from) {
                Ok(()) => {}
                Err(error @ QueueError::Refused(_)) => tracing::warn!(
                    %error,
                    "redis does not permit CLIENT SETNAME: a late append of this connection may be \
                     stored out of order"
                ),
                Err(error) => return Err(error),
            }
            self.connection = Some(connection);
        }
        Ok(self.connection.as_mut().expect("BUG: just connected"))
    }
}

impl Fence {
    /// Creates a fence for every appender to this stream, in any process. It is for a process that
    /// has no appender yet.
    pub fn of_all(redis: Redis) -> Self {
        Self { redis, name: None }
    }

    /// Ends the connections. After that, nothing that was sent on them takes effect. What took
    /// effect before stays. Returns the number of connections: 0 if Redis does not allow it, which
    /// is logged.
    ///
    /// # Errors
    /// [`QueueError`] when Redis cannot be asked now.
    pub async fn close(&self) -> Result<usize, QueueError> {
        let mut connection = self.redis.connect(Some(CONNECT_TIMEOUT)).await?;
        match self.close_over(&mut connection).await {
            Err(error) if is_forbidden(&error) => {
                tracing::warn!(
                    %error,
                    "redis does not permit CLIENT ID, LIST and KILL: an append that got no answer \
                     may be stored out of order"
                );
                Ok(0)
            }
            closed => Ok(closed?),
        }
    }

    async fn close_over(&self, connection: &mut Connection) -> Result<usize, RedisError> {
        let own: String = cmd("CLIENT").arg("ID").query_async(connection).await?;
        let clients: String = cmd("CLIENT").arg("LIST").query_async(connection).await?;
        let ids = ids_of(&clients, &client_name(&self.redis, self.name), &own);
        for id in &ids {
            cmd("CLIENT").arg("KILL").arg("ID").arg(id).query_async::<()>(connection).await?;
        }
        Ok(ids.len())
    }
}

/// True if Redis will never do this for us: the permission is missing, or the command was renamed.
fn is_forbidden(error: &RedisError) -> bool {
    use redis::{ErrorKind, ServerErrorKind};
    let forbidden =
        [ServerErrorKind::NoPerm, ServerErrorKind::ResponseError].map(ErrorKind::Server);
    forbidden.contains(&error.kind())
}

/// Name of one appender's connection, or the common prefix of all such names.
fn client_name(redis: &Redis, name: Option<u64>) -> String {
    let name = name.map(|name| format!("{name:016x}")).unwrap_or_default();
    format!("{}/{name}", redis.keys.stream())
}

/// Ids of the clients whose names start with `name` and that use the same database as the client
/// `own`. `clients` is the reply of CLIENT LIST: a line for each client, with words such as `id=3`.
fn ids_of<'a>(clients: &'a str, name: &str, own: &str) -> Vec<&'a str> {
    let value = |line: &'a str, key: &str| line.split(' ').find_map(|word| word.strip_prefix(key));
    let own = clients.lines().find(|line| value(line, "id=") == Some(own));
    let database = own.and_then(|line| value(line, "db="));
    let begins = |line| value(line, "name=").is_some_and(|other| other.starts_with(name));
    let of_name = clients.lines().filter(|&line| begins(line) && value(line, "db=") == database);
    of_name.filter_map(|line| value(line, "id=")).collect()
}

/// Outcome of the transaction, from the replies to MULTI, XADD, HINCRBY and EXEC.
fn outcome(replies: Vec<RedisResult<Value>>) -> Result<StreamId, AppendError> {
    let unexpected = |what: String| AppendError::Unknown(QueueError::Unexpected(what));
    let [multi, xadd, hincrby, exec] =
        replies.try_into().map_err(|_| unexpected("not one reply a command".to_owned()))?;
    // Without its MULTI, a command was run at once.
    multi.map_err(|refused| AppendError::Unknown(refused.into()))?;
    // A command that is refused while it is queued names the reason. EXEC then only reports that
    // nothing was run.
    let run = xadd.and(hincrby).and(exec);
    match run.map_err(|refused| AppendError::NotStored(refused.into()))? {
        Value::Array(run) => match run.into_iter().next() {
            Some(Value::ServerError(refused)) => {
                Err(AppendError::NotStored(RedisError::from(refused).into()))
            }
            added => added
                .and_then(|id| redis::from_redis_value::<String>(id).ok()?.parse().ok())
                .ok_or_else(|| unexpected("no entry id".to_owned())),
        },
        _ => Err(unexpected("EXEC without replies".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::ids_of;

    #[test]
    fn clients_are_found_by_what_their_names_begin_with() {
        let clients = "id=3 addr=/a:0 name={spillway}:in/01 db=0\n\
                       id=4 addr=/a:0 name= db=0\n\
                       id=5 addr=/name={spillway}:in/ db=0\n\
                       id=17 addr=/a:0 name={spillway}:in/02 db=0\n\
                       id=18 addr=/a:0 name={spillway}:in/01 db=1\n\
                       id=19 addr=/a:0 name= db=1\n";
        assert_eq!(ids_of(clients, "{spillway}:in/01", "4"), ["3"]);
        assert_eq!(ids_of(clients, "{spillway}:in/", "4"), ["3", "17"]);
        assert_eq!(ids_of(clients, "{spillway}:in/", "19"), ["18"]);
        assert_eq!(ids_of(clients, "other:in/", "4"), [""; 0]);
    }
}
