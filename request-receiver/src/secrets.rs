//! The client secrets in force, and how they are replaced while running.
//!
//! Invariant: there is always at least one secret: a file that can't be read, or holds none, leaves
//! the old ones in force.

use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;
use spillway_service::settings::read_secrets;
use spillway_webhook::Secrets;
use tokio::signal::unix::{SignalKind, signal};

/// The secrets in force and the file they can be read from again.
#[derive(Debug)]
pub struct Source {
    secrets: ArcSwap<Secrets>,
    file: Option<PathBuf>,
}

impl Source {
    /// Starts with `secrets`; `file` is read again on SIGHUP.
    pub fn new(secrets: Secrets, file: Option<PathBuf>) -> Self {
        Self { secrets: ArcSwap::from_pointee(secrets), file }
    }

    /// The secrets in force.
    pub fn load(&self) -> arc_swap::Guard<Arc<Secrets>> {
        self.secrets.load()
    }

    fn reload(&self) {
        let Some(file) = &self.file else {
            tracing::info!("SIGHUP: the secrets came from the environment; nothing to read again");
            return;
        };
        match read_secrets(file) {
            Ok(secrets) => {
                let secrets = Secrets::new(&secrets);
                tracing::info!(fingerprints = ?secrets.fingerprints(), "secrets read again");
                self.secrets.store(Arc::new(secrets));
            }
            Err(problem) => {
                tracing::error!(%problem, "SIGHUP: the old secrets stay in force");
            }
        }
    }
}

/// Reads the file again on each SIGHUP.
pub async fn reload_on_hangup(source: Arc<Source>) {
    match signal(SignalKind::hangup()) {
        Ok(mut hangup) => {
            while hangup.recv().await.is_some() {
                source.reload();
            }
        }
        Err(error) => tracing::error!(%error, "SIGHUP can't be listened to"),
    }
}
