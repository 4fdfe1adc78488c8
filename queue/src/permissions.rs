//! Checks the permissions of the Redis user for those commands that a receiver needs only to store
//! a webhook. Nothing is executed. The other commands are used by each look, and their errors name
//! them.
//!
//! Redis checks a command and its keys when the command is queued after MULTI, and answers NOPERM
//! then. DISCARD drops the queued commands.

use redis::{RedisResult, Value};

use crate::connect::{Connection, Redis};
use crate::error::QueueError;

/// Returns the commands of an append that the user may not use, or not on the cell's keys. If the
/// list is not empty, the connection must not be used again: it may still queue commands.
///
/// # Errors
/// [`QueueError`] when Redis cannot be asked.
pub async fn missing(
    redis: &Redis,
    connection: &mut Connection,
) -> Result<Vec<&'static str>, QueueError> {
    let mut transaction = redis::pipe();
    transaction.cmd("MULTI").cmd("EXEC").ignore_errors();
    let replies: Vec<RedisResult<Value>> = transaction.query_async(connection).await?;
    let missing = refused(&["MULTI", "EXEC"], &replies);
    if !missing.is_empty() {
        // Without MULTI, the commands below would be executed.
        return Ok(missing);
    }
    let keys = &redis.keys;
    let mut queued = redis::pipe();
    queued.cmd("MULTI");
    queued.cmd("XADD").arg(keys.stream()).arg("*").arg("p").arg("");
    queued.cmd("HINCRBY").arg(keys.counts()).arg("appended").arg(0);
    queued.cmd("DISCARD").ignore_errors();
    let replies: Vec<RedisResult<Value>> = queued.query_async(connection).await?;
    Ok(refused(&["MULTI", "XADD", "HINCRBY", "DISCARD"], &replies))
}

fn refused(commands: &[&'static str], replies: &[RedisResult<Value>]) -> Vec<&'static str> {
    let is_refused = |reply: &RedisResult<Value>| {
        // An EXEC that is not permitted discards the transaction.
        let code = reply.as_ref().err().and_then(|error| error.code());
        matches!(code, Some("NOPERM" | "EXECABORT"))
    };
    let all = commands.iter().zip(replies);
    all.filter(|(_, reply)| is_refused(reply)).map(|(command, _)| *command).collect()
}
