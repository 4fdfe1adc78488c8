//! `--show-settings`: prints each setting in force, its origin and its value, without secrets.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::process::ExitCode;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};

use crate::error::without_credentials;
use crate::exit;

/// Value that stands for a secret.
const HIDDEN: &str = "(hidden)";

/// Names of the variables that the environment holds now, before `--env-file` is read.
pub fn inherited() -> HashSet<OsString> {
    std::env::vars_os().map(|(name, _)| name).collect()
}

/// Prints the settings of `command`, one line for each: name, origin and value, separated by tabs.
pub(crate) fn print(command: Command, inherited: &HashSet<OsString>) -> ExitCode {
    let arguments: Vec<Arg> = command.get_arguments().cloned().collect();
    match parse(command) {
        Ok(matches) => write(&arguments, &matches, inherited),
        Err(code) => code,
    }
}

/// Prints those of a subcommand that was given.
pub fn print_subcommand(command: Command, name: &str, inherited: &HashSet<OsString>) -> ExitCode {
    let own = command.find_subcommand(name).into_iter().flat_map(|own| own.get_arguments());
    let arguments: Vec<Arg> = own.cloned().collect();
    let matches = match parse(command) {
        Ok(matches) => matches,
        Err(code) => return code,
    };
    match matches.subcommand_matches(name) {
        Some(matches) => write(&arguments, matches, inherited),
        None => ExitCode::from(exit::USAGE),
    }
}

fn parse(command: Command) -> Result<ArgMatches, ExitCode> {
    command.try_get_matches().map_err(|error| {
        error.print().ok();
        ExitCode::from(exit::USAGE)
    })
}

fn write(arguments: &[Arg], matches: &ArgMatches, inherited: &HashSet<OsString>) -> ExitCode {
    let mut output = std::io::stdout();
    let mut lines = arguments.iter().filter_map(|argument| line(argument, matches, inherited));
    match lines.try_for_each(|line| writeln!(output, "{line}")) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::from(exit::FAILED),
    }
}

/// The line of a setting; `None` for a flag that is none.
fn line(argument: &Arg, matches: &ArgMatches, inherited: &HashSet<OsString>) -> Option<String> {
    let variable = argument.get_env()?;
    let name = variable.to_string_lossy();
    let id = argument.get_id().as_str();
    let origin = match matches.value_source(id) {
        Some(ValueSource::CommandLine) => "flag",
        Some(ValueSource::EnvVariable) if inherited.contains(variable) => "environment",
        Some(ValueSource::EnvVariable) => "env file",
        Some(_) => "default",
        None => "not set",
    };
    let values: Vec<_> =
        matches.get_raw(id).into_iter().flatten().map(OsStr::to_string_lossy).collect();
    let value = shown(&name, &values.join(","), argument.is_hide_env_values_set());
    Some(format!("{name}\t{origin}\t{value}"))
}

/// The value as it may be seen: without a secret, or a password or query of a URL.
fn shown(name: &str, value: &str, is_hidden: bool) -> String {
    let is_secret = ["_SECRET", "_PASSWORD", "_TOKEN"].iter().any(|end| name.ends_with(end));
    if value.is_empty() {
        return String::new();
    }
    // In a URL, only what is known to be no secret is shown. A mistake may be anywhere in it.
    let is_url =
        value.contains("://") && !value.contains(char::is_whitespace) || value == "discard:";
    if is_secret || (is_hidden && !(name.ends_with("_URL") && is_url)) {
        return HIDDEN.to_owned();
    }
    let mut text = value.replace(char::is_control, " ");
    if text.contains("://") {
        text = without_credentials(&text);
        if let Some((before, _)) = text.split_once('?') {
            text = format!("{before}?{HIDDEN}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_not_shown() {
        for (name, value, is_hidden, expected) in [
            ("MAX_BODY", "16MiB", false, "16MiB"),
            ("SHOPIFY_CLIENT_SECRET", "hush", true, HIDDEN),
            ("SHOPIFY_CLIENT_SECRET", "hush", false, HIDDEN),
            ("REDIS_PASSWORD", "hush", false, HIDDEN),
            ("SHOP_SECRETS_TOKEN", "hush", false, HIDDEN),
            ("SHOPIFY_CLIENT_SECRET", "", true, ""),
            ("SHOPIFY_CLIENT_SECRET_FILE", "/a\tb", false, "/a b"),
            ("REDIS_URL", "redis://me:hu@sh@host:1/0", true, "redis://host:1/0"),
            ("REDIS_URL", "unix:///a.sock?pass=hush", true, "unix:///a.sock?(hidden)"),
            ("DOWNSTREAM_APP_URL", "discard:", true, "discard:"),
            ("REDIS_URL", ":hush@host:6379", true, HIDDEN),
            ("REDIS_URL", "redis://:a hush@host", true, HIDDEN),
            ("SHOP_SECRETS_URL", "https://a/{shop}?key=hush", false, "https://a/{shop}?(hidden)"),
        ] {
            assert_eq!(shown(name, value, is_hidden), expected, "{name}");
        }
    }

    #[test]
    fn each_origin_is_named() {
        let flag = |name: &'static str| Arg::new(name).long(name).env(name);
        let command = Command::new("x")
            .arg(flag("SHOW_FLAG"))
            .arg(flag("SHOW_DEFAULT").default_value("1s"))
            .arg(flag("SHOW_NOTHING"))
            .arg(Arg::new("check").long("check").action(clap::ArgAction::SetTrue));
        let arguments: Vec<Arg> = command.get_arguments().cloned().collect();
        let matches = command.try_get_matches_from(["x", "--SHOW_FLAG", "a"]).unwrap();
        let inherited = HashSet::new();
        let lines = arguments.iter().filter_map(|argument| line(argument, &matches, &inherited));
        let expected =
            ["SHOW_FLAG\tflag\ta", "SHOW_DEFAULT\tdefault\t1s", "SHOW_NOTHING\tnot set\t"];
        assert_eq!(lines.collect::<Vec<_>>(), expected);
    }
}
