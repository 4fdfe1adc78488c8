//! Waits until a process is ready, and reports the reason if that takes long.

use std::net::SocketAddr;
use std::time::Duration;

use http::StatusCode;
use spillway_queue::status;
use tokio::net::TcpStream;

use crate::failure::Failure;
use crate::http::{HttpClient, reachable};
use crate::out::{Progress, printable};
use crate::place::CellArgs;

/// Time between two checks, too short for a person to notice.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Waits until Redis has loaded its data and answers.
pub(super) async fn redis(place: &CellArgs) -> Result<(), Failure> {
    let mut progress = Progress::new();
    loop {
        let looked = async {
            let (redis, mut connection) = place.connect().await?;
            Ok::<_, Failure>(status::read(&redis, &mut connection).await?)
        };
        match looked.await {
            Ok(_) => return Ok(()),
            Err(failure @ (Failure::Settings(_) | Failure::Usage(_))) => return Err(failure),
            Err(failure) => progress.tell(|| format!("waiting for redis: {failure}")),
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Waits until somebody listens on this address.
pub(super) async fn listens(name: &str, address: SocketAddr) {
    let mut progress = Progress::new();
    while let Err(error) = TcpStream::connect(reachable(address)).await {
        progress.tell(|| format!("waiting for the {name}: {error}"));
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Waits until the process with this admin address is ready.
pub(super) async fn process(name: &str, admin: SocketAddr) -> Result<(), Failure> {
    let client = HttpClient::plain();
    let url = format!("http://{}/readyz", reachable(admin));
    let mut progress = Progress::new();
    loop {
        let reason = match client.get(&url).await {
            Ok(answer) if answer.status == StatusCode::OK => return Ok(()),
            Ok(answer) => printable(&answer.body).lines().next().unwrap_or_default().to_owned(),
            Err(error) => error,
        };
        progress.tell(|| format!("waiting for the {name}: {reason}"));
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
