//! `spillway health`: asks the processes of this machine or container if they work. It is for the
//! HEALTHCHECK of an image, which has no other HTTP client.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use http::StatusCode;
use spillway_process::Checker;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::failure::Failure;
use crate::http::{HttpClient, reachable};
use crate::out::{line, printable};

/// Default of the receiver's `ADMIN_LISTEN`.
pub(crate) const RECEIVER: &str = "127.0.0.1:9811";
/// Default of the downstreamer's `ADMIN_LISTEN`.
pub(crate) const DOWNSTREAMER: &str = "127.0.0.1:9812";
/// Default of the Kafka producer's `ADMIN_LISTEN`.
pub(crate) const KAFKA_PRODUCER: &str = "127.0.0.1:9813";
/// Default of the archiver's `ADMIN_LISTEN`.
const ARCHIVER: &str = "127.0.0.1:9814";

/// Default of the console's `CONSOLE_LISTEN`.
const CONSOLE: &str = "127.0.0.1:9820";

/// Time for a connection, and again for an answer. A container's check takes 3 s at most.
const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Admin address of the process, as in its settings. Not set: 127.0.0.1:9811 to 127.0.0.1:9814, as far as
    /// something listens there
    #[arg(long, env = "ADMIN_LISTEN", value_name = "ADDRESS")]
    admin_listen: Option<String>,

    /// Ask the console instead
    #[arg(long)]
    console: bool,

    /// Address of the console, as in its settings
    #[arg(long, env = "CONSOLE_LISTEN", value_name = "ADDRESS", default_value = CONSOLE)]
    console_listen: String,

    /// Certificate of the console, as in its settings. With one, it refuses a request without TLS, and works
    /// if it does so in time
    #[arg(long, env = "CONSOLE_TLS_CERT_FILE", value_name = "FILE")]
    console_tls_cert_file: Option<PathBuf>,
}

/// State of the process at one address.
#[derive(Debug, PartialEq, Eq)]
enum ProcessHealth {
    Alive,
    /// No answer, or a part of the process is stuck.
    Stuck(String),
    /// Nothing listens there.
    Absent,
}

/// Asks `/livez`. The exit code is 0 if there is a process and each one works, else 1.
pub(crate) async fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let mut checker = Checker::default();
    let given = arguments.admin_listen.as_deref();
    let given = match arguments.console {
        true => Some(checker.address("CONSOLE_LISTEN", &arguments.console_listen, CONSOLE)),
        false => given.map(|text| checker.address("ADMIN_LISTEN", text, RECEIVER)),
    };
    let certificate = arguments.console_tls_cert_file.filter(|file| !file.as_os_str().is_empty());
    let is_tls = arguments.console && certificate.is_some();
    let addresses = match checker.finish(given)? {
        Some(address) => vec![reachable(address).to_string()],
        None => [RECEIVER, DOWNSTREAMER, KAFKA_PRODUCER, ARCHIVER].map(str::to_owned).to_vec(),
    };
    let mut found = Vec::new();
    for address in &addresses {
        let health = ask(address, is_tls).await;
        match &health {
            ProcessHealth::Alive => line(format_args!("{address}: alive"))?,
            ProcessHealth::Stuck(problem) => line(format_args!("{address}: {problem}"))?,
            ProcessHealth::Absent => {}
        }
        found.push(health);
    }
    if found.iter().all(|health| *health == ProcessHealth::Absent) {
        line(format_args!("nothing listens at {}", addresses.join(", ")))?;
    }
    Ok(if is_healthy(&found) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn is_healthy(found: &[ProcessHealth]) -> bool {
    let is_stuck = |health: &ProcessHealth| matches!(health, ProcessHealth::Stuck(_));
    found.contains(&ProcessHealth::Alive) && !found.iter().any(is_stuck)
}

async fn ask(address: &str, is_tls: bool) -> ProcessHealth {
    let slow = || ProcessHealth::Stuck(format!("no answer within {} s", PATIENCE.as_secs()));
    match timeout(PATIENCE, TcpStream::connect(address)).await {
        Ok(Ok(_)) => {}
        Ok(Err(_)) => return ProcessHealth::Absent,
        Err(_) => return slow(),
    }
    let client = HttpClient::plain();
    let answer = timeout(PATIENCE, client.get(&format!("http://{address}/livez"))).await;
    match answer {
        Ok(Ok(answer)) if answer.status == StatusCode::OK => ProcessHealth::Alive,
        Ok(Ok(answer)) => ProcessHealth::Stuck(printable(&answer.body).trim().to_owned()),
        Ok(Err(_)) if is_tls => ProcessHealth::Alive,
        Ok(Err(error)) => ProcessHealth::Stuck(error),
        Err(_) => slow(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_is_stuck_outweighs_those_that_work() {
        let stuck = || ProcessHealth::Stuck("stuck: shard 0".to_owned());
        assert!(is_healthy(&[ProcessHealth::Absent, ProcessHealth::Alive]));
        assert!(!is_healthy(&[ProcessHealth::Absent, ProcessHealth::Absent]));
        assert!(!is_healthy(&[ProcessHealth::Alive, stuck()]));
    }

    #[tokio::test]
    async fn a_port_without_a_listener_is_no_process() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        assert_eq!(ask(&free.to_string(), false).await, ProcessHealth::Absent);
    }

    #[tokio::test]
    async fn a_console_with_tls_works_if_it_refuses_a_plain_request() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                drop(stream);
            }
        });
        assert_eq!(ask(&address, true).await, ProcessHealth::Alive);
        assert!(matches!(ask(&address, false).await, ProcessHealth::Stuck(_)));
    }
}
