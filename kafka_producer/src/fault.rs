//! Reaction to an error of Kafka: one match, by code and flags, never by text.

use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

/// Call into librdkafka.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    /// Becoming the only producer of the transactional id.
    Init,
    /// Reading the topic or the cursor.
    Look,
    /// Beginning a transaction.
    Begin,
    /// Handing a record over.
    Send,
    /// Delivery of a record.
    Delivery,
    /// Adding the cursor to the transaction.
    Offsets,
    /// Committing.
    Commit,
    /// Aborting.
    Abort,
}

/// Reaction to an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Wait, and repeat the call.
    Retry,
    /// Abort the transaction, and go back to the last committed position.
    Abort,
    /// The outcome of the transaction is unknown, or the producer is not usable any more: build a
    /// new one and read the cursor again.
    Rebuild,
    /// Another producer has the transactional id: stand by.
    Fenced,
    /// Kafka denies access: a person must change a setting or a permission.
    Denied,
    /// Kafka will never accept this record.
    Refused,
}

/// The parts of an error that decide the reaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KafkaFailure {
    /// Code of the error.
    pub code: Code,
    /// True if the producer is not usable any more.
    pub is_fatal: bool,
    /// True if the same call may succeed later.
    pub is_retriable: bool,
    /// True if the transaction must be aborted.
    pub requires_abort: bool,
}

impl KafkaFailure {
    /// Failure of which only the code is known.
    pub(crate) fn of(code: Code) -> Self {
        Self { code, is_fatal: false, is_retriable: false, requires_abort: false }
    }
}

impl From<&KafkaError> for KafkaFailure {
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

/// Decides the reaction to a failed call.
pub(crate) fn judge(call: Call, failure: KafkaFailure) -> Fault {
    let KafkaFailure { code, is_fatal, is_retriable, requires_abort } = failure;
    match (call, code) {
        (_, Code::Fenced | Code::ProducerFenced | Code::InvalidProducerEpoch) => Fault::Fenced,
        (_, code) if is_denial(code) => Fault::Denied,
        (Call::Send | Call::Delivery, code) if is_refusal(code) => Fault::Refused,
        // librdkafka's queue is full: Kafka is slower than Redis just now.
        (Call::Send, Code::QueueFull) => Fault::Retry,
        _ if is_fatal => Fault::Rebuild,
        // The topic or a broker may appear soon.
        (Call::Init | Call::Look, _) => Fault::Retry,
        // Whatever librdkafka reports of a failed commit, the broker may have completed it. And an
        // abort that took too long can't be distinguished from one that the broker gave up.
        (Call::Commit, _) | (Call::Abort, Code::OperationTimedOut | Code::RequestTimedOut) => {
            Fault::Rebuild
        }
        _ if requires_abort => Fault::Abort,
        (Call::Offsets, _) if is_retriable => Fault::Retry,
        (Call::Send | Call::Delivery, _) => Fault::Abort,
        (Call::Begin | Call::Offsets | Call::Abort, _) => Fault::Rebuild,
    }
}

/// Returns true if only a person can fix the error.
pub(crate) fn is_denial(code: Code) -> bool {
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

/// Returns true if the content of a record causes the error.
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

    fn check(call: Call, failure: KafkaFailure, expected: Fault) {
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
                let failure = KafkaFailure { is_fatal: true, ..KafkaFailure::of(code) };
                check(call, failure, Fault::Fenced);
            }
        }
    }

    #[test]
    fn what_a_person_must_change_is_not_retried_at_speed() {
        for call in CALLS {
            check(call, KafkaFailure::of(Code::SaslAuthenticationFailed), Fault::Denied);
            check(call, KafkaFailure::of(Code::TopicAuthorizationFailed), Fault::Denied);
        }
    }

    #[test]
    fn only_a_records_own_fault_is_a_refusal() {
        check(Call::Send, KafkaFailure::of(Code::MessageSizeTooLarge), Fault::Refused);
        check(Call::Delivery, KafkaFailure::of(Code::InvalidTimestamp), Fault::Refused);
        check(Call::Delivery, KafkaFailure::of(Code::MessageTimedOut), Fault::Abort);
        check(Call::Delivery, KafkaFailure::of(Code::PurgeQueue), Fault::Abort);
        check(Call::Send, KafkaFailure::of(Code::QueueFull), Fault::Retry);
        check(Call::Send, KafkaFailure::of(Code::State), Fault::Abort);
    }

    #[test]
    fn a_commit_of_unknown_fate_rebuilds() {
        let timed_out =
            KafkaFailure { is_retriable: true, ..KafkaFailure::of(Code::OperationTimedOut) };
        for call in [Call::Commit, Call::Abort] {
            check(call, timed_out, Fault::Rebuild);
            check(call, KafkaFailure { requires_abort: true, ..timed_out }, Fault::Rebuild);
            check(
                call,
                KafkaFailure { is_fatal: true, ..KafkaFailure::of(Code::Fail) },
                Fault::Rebuild,
            );
        }
        let abortable = KafkaFailure { requires_abort: true, ..KafkaFailure::of(Code::Fail) };
        check(Call::Commit, abortable, Fault::Rebuild);
        check(Call::Offsets, timed_out, Fault::Retry);
        check(Call::Offsets, abortable, Fault::Abort);
    }

    #[test]
    fn a_kafka_that_is_not_there_yet_is_waited_for() {
        check(Call::Init, KafkaFailure::of(Code::OperationTimedOut), Fault::Retry);
        check(Call::Look, KafkaFailure::of(Code::UnknownTopicOrPartition), Fault::Retry);
        check(Call::Look, KafkaFailure::of(Code::BrokerTransportFailure), Fault::Retry);
    }
}
