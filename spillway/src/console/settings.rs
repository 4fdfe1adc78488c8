//! Settings of the console.

use std::net::SocketAddr;
use std::sync::Arc;

use clap::Args;
use spillway_console::authenticate::{AnonymousAccess, Authenticate, NoAccess};
use spillway_console::origin::AllowedHosts;
use spillway_console::{ConsoleGate, Role};
use spillway_process::Checker;
use spillway_process::telemetry::LogFormat;

use crate::failure::Failure;
use crate::place::CellArgs;

const LOG_FORMATS: [(&str, LogFormat); 2] = [("text", LogFormat::Text), ("json", LogFormat::Json)];

/// Settings of the console, as given.
#[derive(Debug, Args)]
pub(super) struct ConsoleArgs {
    #[command(flatten)]
    place: CellArgs,

    /// Address on which the console listens. It has to be one of loopback
    #[arg(long, env = "CONSOLE_LISTEN", default_value = "127.0.0.1:9820")]
    listen: String,

    /// Hosts by which browsers reach the console, such as console.example.com, separated by commas,
    /// with the port if it is neither 80 nor 443. Its own address is always one of them
    #[arg(long, env = "CONSOLE_HOSTS", value_name = "HOSTS")]
    hosts: Option<String>,

    /// Role of everybody who comes, without a login: viewer, support, operator or admin. On loopback
    /// only, where everybody is on this machine. Not set: nobody gets in without a login
    #[arg(long, env = "CONSOLE_ANONYMOUS_ROLE", value_name = "ROLE")]
    anonymous_role: Option<String>,

    /// Format of the log on standard error: text or json. RUST_LOG sets the level, such as info or
    /// debug
    #[arg(long, env = "LOG_FORMAT", default_value = "text")]
    log_format: String,
}

/// Settings of the console, after the check.
pub(super) struct ConsoleSettings {
    /// The cell.
    pub place: CellArgs,
    /// Address on which the console listens.
    pub listen: SocketAddr,
    /// Checks that every route has in common.
    pub gate: ConsoleGate,
    /// Format of the log.
    pub log_format: LogFormat,
}

impl ConsoleArgs {
    /// Checks the settings.
    pub(super) fn check(self) -> Result<ConsoleSettings, Failure> {
        let mut checker = Checker::default();
        self.place.redis()?;
        let listen = checker.address("CONSOLE_LISTEN", &self.listen, "127.0.0.1:9820");
        if !listen.ip().is_loopback() {
            checker.mistake(
                "CONSOLE_LISTEN",
                format_args!("{listen} can be reached by others: set an address of loopback"),
            );
        }
        let role = given(self.anonymous_role.as_deref()).map(str::parse::<Role>).transpose();
        let role = role.unwrap_or_else(|problem| {
            checker.mistake("CONSOLE_ANONYMOUS_ROLE", problem);
            None
        });
        let authenticator: Arc<dyn Authenticate> = match role {
            Some(role) => Arc::new(AnonymousAccess::new(role)),
            None => Arc::new(NoAccess),
        };
        let hosts = given(self.hosts.as_deref()).into_iter().flat_map(|hosts| hosts.split(','));
        let hosts = hosts.map(|host| host.trim().to_owned()).filter(|host| !host.is_empty());
        let hosts = Arc::new(AllowedHosts::new(listen, hosts));
        let log_format = checker.choice("LOG_FORMAT", &self.log_format, &LOG_FORMATS);
        let gate = ConsoleGate { authenticator, hosts };
        let settings = ConsoleSettings { place: self.place, listen, gate, log_format };
        Ok(checker.finish(settings)?)
    }
}

/// An empty variable counts as not set.
fn given(text: Option<&str>) -> Option<&str> {
    text.map(str::trim).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        console: ConsoleArgs,
    }

    fn mistakes(flags: &[&str]) -> String {
        let command = Command::parse_from([&["x"], flags].concat());
        command.console.check().err().map_or(String::new(), |failure| failure.to_string())
    }

    #[test]
    fn what_others_can_reach_is_refused() {
        assert_eq!(mistakes(&["--listen", "[::1]:9820"]), "");
        let told = mistakes(&["--listen", "0.0.0.0:9820"]);
        assert!(told.contains("CONSOLE_LISTEN: 0.0.0.0:9820 can be reached by others"), "{told}");
    }

    #[test]
    fn an_unknown_role_is_refused_with_those_that_exist() {
        assert_eq!(mistakes(&["--anonymous-role", "viewer"]), "");
        assert_eq!(mistakes(&["--anonymous-role", ""]), "");
        let told = mistakes(&["--anonymous-role", "root"]);
        assert!(told.contains("CONSOLE_ANONYMOUS_ROLE") && told.contains("support"), "{told}");
    }
}
