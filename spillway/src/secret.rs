//! The client secret with which a command signs.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use spillway_process::Checker;
use spillway_webhook::Secrets;

use crate::failure::Failure;

const VALUE: &str = "SHOPIFY_CLIENT_SECRET";
const FILE: &str = "SHOPIFY_CLIENT_SECRET_FILE";

/// The client secret: a flag, or a variable of the environment or the env file. A flag wins over both
/// variables.
#[derive(Debug)]
pub(crate) struct SecretArguments {
    secret: Option<String>,
    secret_file: Option<PathBuf>,
}

/// The client secret, as clap reads it.
#[derive(Debug, Args)]
struct GivenSecret {
    /// The app's client secret; of several, the first signs. Prefer the file: a flag shows in the
    /// process list
    #[arg(long, env = VALUE, hide_env_values = true)]
    secret: Option<String>,

    /// File with the client secret, one per line
    #[arg(long, env = FILE)]
    secret_file: Option<PathBuf>,
}

impl FromArgMatches for SecretArguments {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let is_flag = |id| matches.value_source(id) == Some(ValueSource::CommandLine);
        let GivenSecret { secret, secret_file } = GivenSecret::from_arg_matches(matches)?;
        Ok(match (is_flag("secret"), is_flag("secret_file")) {
            (true, false) => Self { secret, secret_file: None },
            (false, true) => Self { secret: None, secret_file },
            (true, true) | (false, false) => Self { secret, secret_file },
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for SecretArguments {
    fn augment_args(command: Command) -> Command {
        GivenSecret::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        GivenSecret::augment_args_for_update(command)
    }
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
