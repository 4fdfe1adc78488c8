//! The client secrets in force, and how they are replaced while running.
//!
//! Invariant: there is always at least one secret: a file that can't be read, or holds none, leaves
//! the old ones in force.

use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;
use prometheus::{IntCounter, IntCounterVec, Opts};
use spillway_service::settings::read_secrets;
use spillway_webhook::signature::BadSignature;
use spillway_webhook::{Secrets, Verified, Webhook};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::yield_now;
use zeroize::Zeroizing;

/// The secrets in force and the file they can be read from again.
#[derive(Debug)]
pub struct ClientSecrets {
    in_force: ArcSwap<InForce>,
    file: Option<PathBuf>,
    matches: IntCounterVec,
}

#[derive(Debug)]
struct InForce {
    secrets: Secrets,
    /// A counter for each, so that none is looked up for a webhook.
    matches: Vec<IntCounter>,
}

impl ClientSecrets {
    /// Starts with `secrets`; `file` is read again on SIGHUP.
    pub fn new(secrets: &[Zeroizing<String>], file: Option<PathBuf>) -> Self {
        let help = "Webhooks by the secret that signed them (first 8 hex digits of its SHA-256).";
        let matches = Opts::new("spillway_signature_matches_total", help);
        let matches =
            IntCounterVec::new(matches, &["secret"]).expect("BUG: a constant name is valid");
        let in_force = ArcSwap::from_pointee(InForce::new(secrets, &matches));
        Self { in_force, file, matches }
    }

    /// Counts what each secret has signed, by its fingerprint.
    pub fn matches(&self) -> &IntCounterVec {
        &self.matches
    }

    /// Checks the webhook's signature under the secrets in force.
    ///
    /// # Errors
    /// [`BadSignature`] when none of them made it.
    pub fn verify(&self, webhook: Webhook) -> Result<Verified<Webhook>, BadSignature> {
        let in_force = self.in_force.load();
        let verified = in_force.secrets.verify(webhook)?;
        in_force.matches[verified.secret()].inc();
        Ok(verified)
    }

    /// The same for a large body, while others on this thread have their turns.
    ///
    /// # Errors
    /// [`BadSignature`] when none of the secrets made it that were in force at the beginning.
    pub async fn verify_in_pieces(
        &self,
        webhook: Webhook,
    ) -> Result<Verified<Webhook>, BadSignature> {
        // Not borrowed: a reload would wait for it.
        let in_force = self.in_force.load_full();
        let verified = in_force.secrets.verify_in_pieces(webhook, yield_now).await?;
        in_force.matches[verified.secret()].inc();
        Ok(verified)
    }

    fn reload(&self) {
        let Some(file) = &self.file else {
            tracing::info!("told to read the secrets again, and they came from the environment");
            return;
        };
        match read_secrets(file) {
            Ok(secrets) => {
                let in_force = InForce::new(&secrets, &self.matches);
                let fingerprints = in_force.secrets.fingerprints().to_vec();
                // First: whoever reads the line may sign with the new one at once.
                self.in_force.store(Arc::new(in_force));
                tracing::info!(?fingerprints, "secrets read again");
            }
            Err(problem) => {
                tracing::error!(%problem, "the secrets could not be read again; the old ones stay in force");
            }
        }
    }
}

impl InForce {
    fn new(secrets: &[Zeroizing<String>], matches: &IntCounterVec) -> Self {
        let secrets = Secrets::new(secrets);
        let fingerprints = secrets.fingerprints().iter();
        let matches = fingerprints.map(|label| matches.with_label_values(&[label])).collect();
        Self { secrets, matches }
    }
}

/// Reads the file again on each SIGHUP. Listens from the call on, not from the first poll: a signal in
/// between would be lost, or end the process.
///
/// # Errors
/// When the signal handler can't be installed.
pub fn reload_on_hangup(
    secrets: Arc<ClientSecrets>,
) -> std::io::Result<impl Future<Output = ()> + Send + 'static> {
    let mut hangup = signal(SignalKind::hangup())?;
    Ok(async move {
        while hangup.recv().await.is_some() {
            secrets.reload();
        }
    })
}
