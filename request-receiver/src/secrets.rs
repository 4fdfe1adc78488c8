//! The client secrets in force, and their reload while the process runs.
//!
//! Invariant: there is always at least one secret. A file that can't be read, or holds none, leaves
//! the old ones in force.

use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;
use prometheus::{IntCounter, IntCounterVec, Opts};
use spillway_process::settings::read_secrets;
use spillway_webhook::signature::BadSignature;
use spillway_webhook::{Secrets, Verified, Webhook};
use tokio::task::yield_now;
use zeroize::Zeroizing;

/// The secrets in force, and the file from which they are read again.
#[derive(Debug)]
pub struct ClientSecrets {
    in_force: ArcSwap<SecretsInForce>,
    file: Option<PathBuf>,
    matches: IntCounterVec,
}

#[derive(Debug)]
struct SecretsInForce {
    secrets: Secrets,
    /// A counter for each secret, so that no webhook needs a lookup.
    matches: Vec<IntCounter>,
}

impl ClientSecrets {
    /// Starts with `secrets`. SIGHUP reads `file` again.
    pub fn new(secrets: &[Zeroizing<String>], file: Option<PathBuf>) -> Self {
        let help = "Webhooks by the secret that signed them (first 8 hex digits of its SHA-256).";
        let matches = Opts::new("spillway_signature_matches_total", help);
        let matches =
            IntCounterVec::new(matches, &["secret"]).expect("BUG: a constant name is valid");
        let in_force = ArcSwap::from_pointee(SecretsInForce::new(secrets, &matches));
        Self { in_force, file, matches }
    }

    /// Counter of webhooks for each secret, by its fingerprint.
    pub fn matches(&self) -> &IntCounterVec {
        &self.matches
    }

    /// Checks the webhook's signature under the secrets in force.
    ///
    /// # Errors
    /// [`BadSignature`] if none of them made the signature.
    pub fn verify(&self, webhook: Webhook) -> Result<Verified<Webhook>, BadSignature> {
        let in_force = self.in_force.load();
        let verified = in_force.secrets.verify(webhook)?;
        in_force.matches[verified.secret()].inc();
        Ok(verified)
    }

    /// Checks a large webhook as [`Self::verify`] does, and lets other tasks of the thread run
    /// meanwhile.
    ///
    /// # Errors
    /// [`BadSignature`] if none of the secrets that were in force at the beginning made the
    /// signature.
    pub async fn verify_in_pieces(
        &self,
        webhook: Webhook,
    ) -> Result<Verified<Webhook>, BadSignature> {
        // Not borrowed: a reload would wait for the end of the borrow.
        let in_force = self.in_force.load_full();
        let verified = in_force.secrets.verify_in_pieces(webhook, yield_now).await?;
        in_force.matches[verified.secret()].inc();
        Ok(verified)
    }

    /// Reads the file again. If it can't be read, the old secrets stay in force.
    pub fn reload(&self) {
        let Some(file) = &self.file else {
            tracing::info!("told to read the secrets again, and they came from the environment");
            return;
        };
        match read_secrets(file) {
            Ok(secrets) => {
                let in_force = SecretsInForce::new(&secrets, &self.matches);
                let fingerprints = in_force.secrets.fingerprints().to_vec();
                // Stored before the line is logged: a sender that sees the line may sign with the
                // new secret at once.
                self.in_force.store(Arc::new(in_force));
                tracing::info!(?fingerprints, "secrets read again");
            }
            Err(problem) => {
                tracing::error!(%problem, "the secrets could not be read again; the old ones stay in force");
            }
        }
    }
}

impl SecretsInForce {
    fn new(secrets: &[Zeroizing<String>], matches: &IntCounterVec) -> Self {
        let secrets = Secrets::new(secrets);
        let fingerprints = secrets.fingerprints().iter();
        let matches = fingerprints.map(|label| matches.with_label_values(&[label])).collect();
        Self { secrets, matches }
    }
}
