//! Reports from librdkafka: records that failed, and trouble with brokers.

use std::borrow::Cow;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::ConsumerContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::producer::{DeliveryResult, ProducerContext};

use crate::fault::is_denial;

/// Collects reports until they are asked for. Bounded by the records of one transaction.
#[derive(Default)]
pub(crate) struct Reports {
    failed: Mutex<Vec<(usize, Code)>>,
    trouble: Mutex<Option<BrokerTrouble>>,
}

/// Last trouble with a broker or the connection to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BrokerTrouble {
    /// True if a person must change something.
    pub is_denial: bool,
    /// Text from librdkafka.
    pub text: String,
}

impl Reports {
    /// Takes the numbers and errors of the records that failed since the last call.
    pub(crate) fn take_failed(&self) -> Vec<(usize, Code)> {
        std::mem::take(&mut *lock(&self.failed))
    }

    /// Returns true if a record has failed.
    pub(crate) fn has_failed(&self) -> bool {
        !lock(&self.failed).is_empty()
    }

    /// Notes a record that librdkafka did not accept. It can never be sent.
    pub(crate) fn refuse(&self, number: usize, error: &KafkaError) {
        let code = match error.rdkafka_error_code() {
            Some(code) if code != Code::QueueFull => code,
            // Larger than the whole queue.
            _ => Code::MessageSizeTooLarge,
        };
        lock(&self.failed).push((number, code));
    }

    /// The trouble, if there is any.
    pub(crate) fn trouble(&self) -> Option<BrokerTrouble> {
        lock(&self.trouble).clone()
    }

    /// Clears the trouble: everything works.
    pub(crate) fn forget_trouble(&self) {
        lock(&self.trouble).take();
    }
}

impl BrokerTrouble {
    /// Text for `/readyz`.
    pub(crate) fn reason(&self) -> Cow<'static, str> {
        let code = if self.is_denial { "kafka_refuses" } else { "kafka_unavailable" };
        format!("{code}: {}", self.text).into()
    }
}

impl ClientContext for Reports {
    fn log(&self, level: RDKafkaLogLevel, fac: &str, message: &str) {
        match level {
            RDKafkaLogLevel::Emerg | RDKafkaLogLevel::Alert | RDKafkaLogLevel::Critical => {
                tracing::error!(target: "librdkafka", fac, message);
            }
            // librdkafka repeats that a broker is away. The consequences are logged elsewhere.
            RDKafkaLogLevel::Error | RDKafkaLogLevel::Warning | RDKafkaLogLevel::Notice => {
                tracing::debug!(target: "librdkafka", fac, message);
            }
            RDKafkaLogLevel::Info | RDKafkaLogLevel::Debug => {
                tracing::trace!(target: "librdkafka", fac, message);
            }
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let code = error.rdkafka_error_code().unwrap_or(Code::Unknown);
        let text = format!("{code}: {reason}");
        tracing::debug!(target: "librdkafka", text, "trouble");
        let mut trouble = lock(&self.trouble);
        // "All brokers down" is less specific than the cause before it.
        let says_more = code != Code::AllBrokersDown || trouble.is_none();
        if says_more && !trouble.as_ref().is_some_and(|known| known.is_denial) {
            *trouble = Some(BrokerTrouble { is_denial: is_denial(code), text });
        }
    }
}

impl ProducerContext for Reports {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, number: usize) {
        if let Err((error, _)) = result {
            let code = error.rdkafka_error_code().unwrap_or(Code::Unknown);
            lock(&self.failed).push((number, code));
        }
    }
}

impl ConsumerContext for Reports {}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
