//! The processes to start, their addresses and their settings. All mistakes are found here, before
//! anything runs.

use std::env;
use std::ffi::OsString;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;

use clap::builder::FalseyValueParser;
use spillway_process::Checker;
use spillway_queue::keys::DEFAULT_PREFIX;
use spillway_webhook::Secrets;

use super::children::Recipe;
use super::state::CellDirectory;
use crate::failure::Failure;
use crate::http::reachable;
use crate::place::CellArgs;
use crate::programs;
use crate::secret::SecretArguments;

/// Variable by which the console knows the demo backend.
pub(crate) const CONTROL_URL: &str = "DEMO_CONTROL_URL";
/// Retries of a cell with the demo backend, where nothing else is set: a newcomer sees all of them, and the dead letter
/// after them, within a minute.
const DEMO_RETRIES: [(&str, &str); 4] = [
    ("RETRY_FIRST", "500ms"),
    ("RETRY_LONGEST", "5s"),
    ("RETRY_FOR", "20s"),
    ("RETRY_REFUSED_FOR", "10s"),
];

/// Arguments of `dev`. Other settings of the receiver and the downstreamer come from the
/// environment.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Address on which the receiver accepts webhooks
    #[arg(long, env = "LISTEN", default_value = "127.0.0.1:8080")]
    listen: String,

    /// Admin address of the receiver
    #[arg(long, env = "RECEIVER_ADMIN_LISTEN", default_value = "127.0.0.1:9811")]
    receiver_admin_listen: String,

    /// Admin address of the downstreamer
    #[arg(long, env = "DOWNSTREAMER_ADMIN_LISTEN", default_value = "127.0.0.1:9812")]
    downstreamer_admin_listen: String,

    /// URL of the backend; without one, a demo backend prints each delivery
    #[arg(long, env = "DOWNSTREAM_APP_URL", hide_env_values = true)]
    downstream_app_url: Option<String>,

    /// Address on which the demo backend listens
    #[arg(long, env = "DEMO_LISTEN", default_value = "127.0.0.1:8081")]
    demo_listen: String,

    /// Address on which the console listens, for everybody on this machine
    #[arg(long, env = "CONSOLE_LISTEN", default_value = "127.0.0.1:9820")]
    console_listen: String,

    #[command(flatten)]
    secret: SecretArguments,

    /// Prefix of the name of every key
    #[arg(long, env = "REDIS_PREFIX", default_value = DEFAULT_PREFIX)]
    redis_prefix: String,

    /// Exit 0 once the sample is delivered, 1 if it is not within 60 s or becomes a dead letter
    #[arg(long, env = "ONESHOT", value_parser = FalseyValueParser::new())]
    oneshot: bool,
}

/// The arguments after they were checked.
#[derive(Debug)]
pub(super) struct DevPlan {
    /// Address on which the receiver accepts webhooks.
    pub listen: SocketAddr,
    /// Admin address of the receiver.
    pub receiver_admin: SocketAddr,
    /// Admin address of the downstreamer.
    pub downstreamer_admin: SocketAddr,
    /// Address on which the demo backend listens, if one is started.
    pub demo_listen: Option<SocketAddr>,
    /// Address on which the console listens; `None` with `--oneshot`, which nobody watches.
    pub console_listen: Option<SocketAddr>,
    /// URL to which the downstreamer delivers.
    pub backend_url: String,
    /// The private Redis.
    pub place: CellArgs,
    /// Set to exit once the sample is delivered.
    pub oneshot: bool,
    /// Set if `dev` made the secret.
    pub has_own_secret: bool,
    secret: SecretArguments,
    redis_url: String,
    redis_prefix: String,
}

impl DevPlan {
    /// Checks the arguments and that every address is free, and writes the settings to `./run`.
    pub(super) fn check(arguments: Arguments, state: &CellDirectory) -> Result<Self, Failure> {
        let backend = arguments.downstream_app_url.filter(|url| !url.is_empty());
        let mut checker = Checker::default();
        let listen = free(&mut checker, "LISTEN", &arguments.listen);
        let receiver_admin =
            free(&mut checker, "RECEIVER_ADMIN_LISTEN", &arguments.receiver_admin_listen);
        let downstreamer_admin =
            free(&mut checker, "DOWNSTREAMER_ADMIN_LISTEN", &arguments.downstreamer_admin_listen);
        let demo_listen =
            backend.is_none().then(|| free(&mut checker, "DEMO_LISTEN", &arguments.demo_listen));
        let console_listen = (!arguments.oneshot)
            .then(|| free(&mut checker, "CONSOLE_LISTEN", &arguments.console_listen));
        let has_own_secret = !arguments.secret.is_given();
        let secret = if has_own_secret {
            SecretArguments::in_file(state.secret_file()?)
        } else {
            arguments.secret
        };
        checker.finish(())?;
        let backend_url = match (backend, demo_listen) {
            (Some(url), _) => url,
            (None, Some(address)) => format!("http://{}", reachable(address)),
            (None, None) => return Err(Failure::Failed("BUG: no backend".to_owned())),
        };
        let redis_url = state.redis_url();
        let redis_prefix = arguments.redis_prefix;
        let place = CellArgs::new(redis_url.clone(), redis_prefix.clone());
        let oneshot = arguments.oneshot;
        let plan = Self {
            listen,
            receiver_admin,
            downstreamer_admin,
            demo_listen,
            console_listen,
            backend_url,
            place,
            oneshot,
            has_own_secret,
            secret,
            redis_url,
            redis_prefix,
        };
        plan.secrets()?;
        state.write_settings(&plan.settings_to_keep())?;
        Ok(plan)
    }

    /// Secrets that verify signatures.
    pub(super) fn secrets(&self) -> Result<Secrets, Failure> {
        self.secret.checked()
    }

    /// URL to which webhooks are posted.
    pub(super) fn receiver_url(&self) -> String {
        format!("http://{}/webhooks", reachable(self.listen))
    }

    /// Parameters to start the receiver.
    pub(super) fn receiver(&self) -> Result<Recipe, Failure> {
        let (secret, other) = self.secret.environment();
        Ok(Recipe {
            name: "receiver",
            program: beside_us("request-receiver")?,
            arguments: &[],
            settings: vec![
                ("REDIS_URL", self.redis_url.clone().into()),
                ("REDIS_PREFIX", self.redis_prefix.clone().into()),
                ("LISTEN", self.listen.to_string().into()),
                ("ADMIN_LISTEN", self.receiver_admin.to_string().into()),
                secret,
            ],
            removed: other,
        })
    }

    /// Parameters to start the downstreamer.
    pub(super) fn downstreamer(&self) -> Result<Recipe, Failure> {
        let mut settings: Vec<(&str, OsString)> = vec![
            ("REDIS_URL", self.redis_url.clone().into()),
            ("REDIS_PREFIX", self.redis_prefix.clone().into()),
            ("DOWNSTREAM_APP_URL", self.backend_url.clone().into()),
            ("ADMIN_LISTEN", self.downstreamer_admin.to_string().into()),
        ];
        if self.demo_listen.is_some() {
            let unset = DEMO_RETRIES.into_iter().filter(|(name, _)| env::var_os(name).is_none());
            settings.extend(unset.map(|(name, value)| (name, value.into())));
        }
        Ok(Recipe {
            name: "downstreamer",
            program: beside_us("downstreamer")?,
            arguments: &[],
            settings,
            removed: "LISTEN",
        })
    }

    /// Parameters to start the console on this address. It has no secret. `control_url` is of the demo backend.
    pub(super) fn console(
        &self,
        listen: SocketAddr,
        control_url: Option<&str>,
    ) -> Result<Recipe, Failure> {
        let mut settings: Vec<(&str, OsString)> = vec![
            ("REDIS_URL", self.redis_url.clone().into()),
            ("REDIS_PREFIX", self.redis_prefix.clone().into()),
            ("CONSOLE_LISTEN", listen.to_string().into()),
            ("CONSOLE_HOSTS", format!("localhost:{}", listen.port()).into()),
            ("CONSOLE_ANONYMOUS_ROLE", "operator".into()),
            ("RECEIVER_ADMIN_LISTEN", reachable(self.receiver_admin).to_string().into()),
            ("DOWNSTREAMER_ADMIN_LISTEN", reachable(self.downstreamer_admin).to_string().into()),
            // They are refused together with it, and nobody comes from elsewhere.
            ("TRUSTED_PROXIES", "".into()),
            ("TRUSTED_USER_HEADER", "".into()),
        ];
        settings.extend(control_url.map(|url| (CONTROL_URL, url.into())));
        Ok(Recipe {
            name: "console",
            program: beside_us("spillway")?,
            arguments: &["console"],
            settings,
            removed: "SHOPIFY_CLIENT_SECRET",
        })
    }

    /// Settings to write to `./run`. A secret that was given is not written.
    fn settings_to_keep(&self) -> Vec<(&'static str, OsString)> {
        let mut settings: Vec<(&str, OsString)> = vec![
            ("REDIS_URL", self.redis_url.clone().into()),
            ("REDIS_PREFIX", self.redis_prefix.clone().into()),
            ("DOWNSTREAM_APP_URL", self.backend_url.clone().into()),
            // `spillway doctor` asks there.
            ("RECEIVER_ADMIN_LISTEN", reachable(self.receiver_admin).to_string().into()),
            ("DOWNSTREAMER_ADMIN_LISTEN", reachable(self.downstreamer_admin).to_string().into()),
        ];
        if self.has_own_secret {
            settings.push(self.secret.environment().0);
        }
        settings
    }
}

/// Parses an address and checks that nobody listens on it.
fn free(checker: &mut Checker, key: &str, text: &str) -> SocketAddr {
    if text.starts_with("unix:") {
        checker.mistake(key, "must be a TCP address here, such as 127.0.0.1:8080");
        return SocketAddr::from(([127, 0, 0, 1], 0));
    }
    let address = checker.address(key, text, "127.0.0.1:8080");
    if let Err(error) = TcpListener::bind(address) {
        let problem = format!("cannot listen on {address} ({error}); set {key} to a free address");
        checker.mistake(key, problem);
    }
    address
}

/// Path of another of our binaries, which must exist.
fn beside_us(name: &str) -> Result<PathBuf, Failure> {
    let program = programs::beside_us(name)?;
    if program.is_file() {
        return Ok(program);
    }
    let profile = if cfg!(debug_assertions) { "" } else { " --release" };
    Err(Failure::Failed(format!(
        "{} is missing: install all programs of this release into one directory, or in a checkout run: \
         cargo build{profile} -p request-receiver -p downstreamer",
        program.display()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_in_use_is_named_with_its_variable() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut checker = Checker::default();
        free(&mut checker, "LISTEN", &taken.local_addr().unwrap().to_string());
        free(&mut checker, "DEMO_LISTEN", "unix:/a");
        let told = checker.finish(()).unwrap_err().to_string();
        assert!(told.contains("set LISTEN to a free address"), "{told}");
        assert!(told.contains("DEMO_LISTEN: must be a TCP address"), "{told}");
    }
}
