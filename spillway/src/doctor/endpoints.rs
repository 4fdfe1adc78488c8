//! Checks the processes of the cell through their admin endpoints.

use http::StatusCode;
use spillway_process::admin::NO_GATE;

use super::finding::Finding;
use crate::health::{DOWNSTREAMER, KAFKA_PRODUCER, RECEIVER};
use crate::http::HttpClient;
use crate::out::printable;

/// Code of the downstreamer's note while no delivery succeeds.
const BACKEND_DOWN: &str = "backend_down: ";

/// Admin addresses of the processes.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct EndpointArguments {
    /// Admin address of the receiver; default 127.0.0.1:9811, where no answer is only a warning
    #[arg(long, env = "RECEIVER_ADMIN_LISTEN", value_name = "ADDRESS")]
    receiver: Option<String>,

    /// Admin address of the downstreamer; default 127.0.0.1:9812
    #[arg(long, env = "DOWNSTREAMER_ADMIN_LISTEN", value_name = "ADDRESS")]
    downstreamer: Option<String>,

    /// Admin address of the Kafka producer; default 127.0.0.1:9813, checked if a consumer named
    /// kafka is registered
    #[arg(long, env = "KAFKA_PRODUCER_ADMIN_LISTEN", value_name = "ADDRESS")]
    kafka_producer: Option<String>,
}

impl EndpointArguments {
    /// Admin addresses of the processes, with their names.
    pub(crate) fn addresses(&self) -> [(&'static str, String); 3] {
        let or =
            |address: Option<&String>, default: &str| given(address).unwrap_or(default).to_owned();
        [
            ("receiver", or(self.receiver.as_ref(), RECEIVER)),
            ("downstreamer", or(self.downstreamer.as_ref(), DOWNSTREAMER)),
            ("kafka-producer", or(self.kafka_producer.as_ref(), KAFKA_PRODUCER)),
        ]
    }
}

/// An empty variable counts as not set.
fn given(address: Option<&String>) -> Option<&str> {
    address.map(|address| address.trim()).filter(|address| !address.is_empty())
}

/// Checks that each process is ready.
pub(super) async fn examine(arguments: &EndpointArguments, has_kafka: bool) -> Vec<Finding> {
    let client = HttpClient::plain();
    let address = given(arguments.receiver.as_ref());
    let mut findings = vec![endpoint(&client, "receiver", address, RECEIVER).await];
    let address = given(arguments.downstreamer.as_ref());
    findings.push(endpoint(&client, "downstreamer", address, DOWNSTREAMER).await);
    let address = given(arguments.kafka_producer.as_ref());
    if has_kafka || address.is_some() {
        findings.push(endpoint(&client, "kafka-producer", address, KAFKA_PRODUCER).await);
    }
    findings
}

async fn endpoint(client: &HttpClient, name: &str, given: Option<&str>, default: &str) -> Finding {
    let address = given.unwrap_or(default);
    let fix_address = format!("start it, or give its ADMIN_LISTEN address: --{name} HOST:PORT");
    match client.get(&format!("http://{address}/readyz")).await {
        Ok(answer) if answer.status == StatusCode::OK => {
            ready(&format!("the {name} at {address}"), &printable(&answer.body))
        }
        Ok(answer) => {
            let text = printable(&answer.body);
            let reason = text.lines().next().unwrap_or_default().trim();
            let what = format!("the {name} at {address} is not ready: {reason}");
            Finding::problem(what, "its log says more")
        }
        Err(error) if given.is_some() => Finding::problem(
            format!("the {name} does not answer at {address}: {error}"),
            fix_address,
        ),
        Err(_) => Finding::warning(format!("no {name} answers at {address}"), fix_address),
    }
}

/// Finding for a process that is ready, from the text of its `/readyz`. The second line is a note, if
/// there is one.
fn ready(process: &str, text: &str) -> Finding {
    let note = text.lines().nth(1).map(str::trim).filter(|note| *note != NO_GATE);
    match note {
        None => Finding::ok(format!("{process} is ready")),
        Some(note) if note.starts_with(BACKEND_DOWN) => Finding::problem(
            format!("{process} delivers nothing: {note}"),
            "look at the backend and its log; the log of the downstreamer names its last answer",
        ),
        Some(note) => Finding::warning(
            format!("{process} is ready, with a note: {note}"),
            "docs/operate.md explains the notes of /readyz",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Severity;
    use super::*;

    #[test]
    fn an_empty_variable_stands_for_the_default_address() {
        let arguments = EndpointArguments {
            receiver: Some(String::new()),
            downstreamer: Some("downstreamer:9812".to_owned()),
            kafka_producer: None,
        };
        let addresses = arguments.addresses().map(|(_, address)| address);
        assert_eq!(addresses, [RECEIVER, "downstreamer:9812", KAFKA_PRODUCER]);
    }

    #[test]
    fn a_note_of_a_ready_process_is_no_silence() {
        let of = |text: &str| ready("it", text);
        assert_eq!(of("ready\n").level, Severity::Ok);
        assert_eq!(of(&format!("ready\n{NO_GATE}\n")).level, Severity::Ok);
        let spills = of("ready\nspilling: queue_full\n");
        assert_eq!(spills.level, Severity::Warning);
        let down = of(&format!("ready\nbackend_down: no delivery succeeds\n{NO_GATE}\n"));
        assert_eq!(down.level, Severity::Problem);
        assert!(down.what.contains("no delivery succeeds"), "{}", down.what);
    }
}
