//! The client secret with which a command signs.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use spillway_process::Checker;
use spillway_webhook::Secrets;

use crate::failure::Failure;

const VALUE: &str = "SHOPIFY_CLIENT_SECRET";
const FILE: &str = "SHOPIFY_CLIENT_SECRET_FILE";

/// The client secret, as given on the command line.
#[derive(Debug, Args)]
pub(crate) struct SecretArguments {
    /// The app's client secret; of several, the first signs. Prefer the file: a flag shows in the
    /// process list
    #[arg(long, env = VALUE, hide_env_values = true)]
    secret: Option<String>,

    /// File with the client secret, one per line
    #[arg(long, env = FILE)]
    secret_file: Option<PathBuf>,
}

impl SecretArguments {
    /// Uses the secret in this file.
    pub(crate) fn in_file(file: PathBuf) -> Self {
        Self { secret: None, secret_file: Some(file) }
    }

    /// The variable that passes the secret to a child, and the one that the child must not see.
    pub(crate) fn environment(&self) -> ((&'static str, OsString), &'static str) {
        match &self.secret_file {
            Some(file) => ((FILE, file.clone().into()), VALUE),
            None => ((VALUE, self.secret.clone().unwrap_or_default().into()), FILE),
        }
    }

    /// True if a secret is given.
    pub(crate) fn is_given(&self) -> bool {
        self.secret.is_some() || self.secret_file.is_some()
    }

    /// Returns the secrets; there is at least one.
    pub(crate) fn checked(&self) -> Result<Secrets, Failure> {
        let mut checker = Checker::default();
        let value = self.secret.as_deref();
        let file = self.secret_file.as_deref();
        let secrets = checker.secrets(VALUE, value, file, true);
        Ok(Secrets::new(&checker.finish(secrets)?))
    }
}
