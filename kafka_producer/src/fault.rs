//! What to do about an error of Kafka: one match, told by code and flags, never by text.

use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

/// What was asked of librdkafka.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// Becoming the one producer of the transactional id.
    Init,
    /// Asking for the topic or the cursor.
    Look,
    /// Beginning a transaction.
    Begin,
    /// Handing a record over.
    Send,
    /// What became of a record.
    Delivery,
    /// The cursor's place in the transaction.
    Offsets,
    /// Committing.
    Commit,
    /// Aborting.
    Abort,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Wait, and ask the same again.
    Retry,
    /// Abort the transaction, and go back to the last committed place.
    Abort,
    /// Whether the transaction was committed is unknown, or the producer is of no use any more:
    /// build one anew and read the cursor again.
    Rebuild,
    /// Another producer has the transactional id: stand by.
    Fenced,
    /// Kafka will not have us like this: a person must change a setting or a permission.
    Denied,
    /// Kafka will never take this record.
    Refused,
}

/// An error, as far as it decides anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    /// Its code.
    pub code: Code,
    /// The producer is of no use any more.
    pub is_fatal: bool,
    /// The same call may succeed later.
    pub is_retriable: bool,
    /// The transaction must be aborted.
    pub requires_abort: bool,
}

impl Failure {
    /// One that is known by its code only.
    pub fn of(code: Code) -> Self {
        Self { code, is_fatal: false, is_retriable: false, requires_abort: false }
    }
}

impl From<&KafkaError> for Failure {
    fn from(error: &KafkaError) -> Self {
        match error {
            KafkaError::Transaction(error) => Self {
                code: error.code(),
                is_fatal: error.is_fatal(),
                is_retriable: error.is_retriable(),
                requires_abort: error.txn_requires_abort(),
            },
            other => Self::of(other.rdkafka_error_code().unwrap_or(Code::Unknown)),
        }
    }
}

/// What to do about a failed call.
pub fn judge(call: Call, failure: Failure) -> Fault {
    let Failure { code, is_fatal, is_retriable, requires_abort } = failure;
    match (call, code) {
        (_, Code::Fenced | Code::ProducerFenced | Code::InvalidProducerEpoch) => Fault::Fenced,
        (_, code) if is_denial(code) => Fault::Denied,
        (Call::Send | Call::Delivery, code) if is_refusal(code) => Fault::Refused,
        // Its own memory is full: Kafka is slower than Redis just now.
        (Call::Send, Code::QueueFull) => Fault::Retry,
        _ if is_fatal => Fault::Rebuild,
        // The topic may be on its way, and a broker too.
        (Call::Init | Call::Look, _) => Fault::Retry,
        // Whatever librdkafka thinks of a failed commit, the broker may have completed it. And an
        // abort that took too long can't be told from one that the broker gave up.
        (Call::Commit, _) | (Call::Abort, Code::OperationTimedOut | Code::RequestTimedOut) => {
            Fault::Rebuild
        }
        _ if requires_abort => Fault::Abort,
        (Call::Offsets, _) if is_retriable => Fault::Retry,
        (Call::Send | Call::Delivery, _) => Fault::Abort,
        (Call::Begin | Call::Offsets | Call::Abort, _) => Fault::Rebuild,
    }
}

/// Whether only a person can help.
pub fn is_denial(code: Code) -> bool {
    matches!(
        code,
        Code::Authentication
            | Code::SaslAuthenticationFailed
            | Code::UnsupportedSASLMechanism
            | Code::SSL
            | Code::TopicAuthorizationFailed
            | Code::GroupAuthorizationFailed
            | Code::ClusterAuthorizationFailed
            | Code::TransactionalIdAuthorizationFailed
            | Code::InvalidTransactionTimeout
            | Code::InvalidTopic
            | Code::PolicyViolation
            | Code::InvalidReplicationFactor
            | Code::UnsupportedFeature
            | Code::UnsupportedVersion
    )
}

/// Whether the code speaks of what is in a record.
fn is_refusal(code: Code) -> bool {
    matches!(
        code,
        Code::MessageSizeTooLarge
            | Code::MessageBatchTooLarge
            | Code::InvalidMessageSize
            | Code::InvalidRecord
            | Code::InvalidTimestamp
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(call: Call, failure: Failure, expected: Fault) {
        assert_eq!(judge(call, failure), expected, "{call:?} {failure:?}");
    }

    const CALLS: [Call; 8] = [
        Call::Init,
        Call::Look,
        Call::Begin,
        Call::Send,
        Call::Delivery,
        Call::Offsets,
        Call::Commit,
        Call::Abort,
    ];

    #[test]
    fn a_fenced_producer_stands_by_whatever_it_asked() {
        for call in CALLS {
            for code in [Code::Fenced, Code::ProducerFenced, Code::InvalidProducerEpoch] {
                let failure = Failure { is_fatal: true, ..Failure::of(code) };
                check(call, failure, Fault::Fenced);
            }
        }
    }

    #[test]
    fn what_a_person_must_change_is_not_retried_at_speed() {
        for call in CALLS {
            check(call, Failure::of(Code::SaslAuthenticationFailed), Fault::Denied);
            check(call, Failure::of(Code::TopicAuthorizationFailed), Fault::Denied);
        }
    }

    #[test]
    fn only_a_records_own_fault_is_a_refusal() {
        check(Call::Send, Failure::of(Code::MessageSizeTooLarge), Fault::Refused);
        check(Call::Delivery, Failure::of(Code::InvalidTimestamp), Fault::Refused);
        check(Call::Delivery, Failure::of(Code::MessageTimedOut), Fault::Abort);
        check(Call::Delivery, Failure::of(Code::PurgeQueue), Fault::Abort);
        check(Call::Send, Failure::of(Code::QueueFull), Fault::Retry);
        check(Call::Send, Failure::of(Code::State), Fault::Abort);
    }

    #[test]
    fn a_commit_of_unknown_fate_rebuilds() {
        let timed_out = Failure { is_retriable: true, ..Failure::of(Code::OperationTimedOut) };
        for call in [Call::Commit, Call::Abort] {
            check(call, timed_out, Fault::Rebuild);
            check(call, Failure { requires_abort: true, ..timed_out }, Fault::Rebuild);
            check(call, Failure { is_fatal: true, ..Failure::of(Code::Fail) }, Fault::Rebuild);
        }
        let abortable = Failure { requires_abort: true, ..Failure::of(Code::Fail) };
        check(Call::Commit, abortable, Fault::Rebuild);
        check(Call::Offsets, timed_out, Fault::Retry);
        check(Call::Offsets, abortable, Fault::Abort);
    }

    #[test]
    fn a_kafka_that_is_not_there_yet_is_waited_for() {
        check(Call::Init, Failure::of(Code::OperationTimedOut), Fault::Retry);
        check(Call::Look, Failure::of(Code::UnknownTopicOrPartition), Fault::Retry);
        check(Call::Look, Failure::of(Code::BrokerTransportFailure), Fault::Retry);
    }
}
