//! `spillway drains`: who has to be past an entry before it is freed.

use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use spillway_queue::drains::{StartAt, forget, register};
use spillway_queue::status::read;

use crate::failure::Failure;
use crate::out::{count, line};
use crate::place::Place;
use crate::status::drains_text;

/// Of `drains`.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    place: Place,

    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List them, with what each holds back (the default)
    List,
    /// Register one ahead of its first start: from then on, entries are kept for it
    Add {
        /// Its name: http for the downstreamer, kafka for the Kafka producer
        #[arg(value_parser = name)]
        name: String,
        /// Where it begins
        #[arg(long, value_enum, env = "START_AT", default_value = "oldest")]
        start_at: Start,
    },
    /// Forget one for good, with all it parked and gave up; what only it held back is freed
    Forget {
        /// Its name
        #[arg(value_parser = name)]
        name: String,
        /// Do it
        #[arg(long)]
        yes: bool,
    },
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Start {
    /// With the oldest entry left
    Oldest,
    /// With what is accepted from now on
    Now,
}

/// Does what was asked.
pub async fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    match arguments.action.unwrap_or(Action::List) {
        Action::List => list(&arguments.place).await?,
        Action::Add { name, start_at } => add(&arguments.place, &name, start_at).await?,
        Action::Forget { name, yes } => forget_one(&arguments.place, &name, yes).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(place: &Place) -> Result<(), Failure> {
    let (redis, mut connection) = place.connect().await?;
    Ok(line(drains_text(&read(&redis, &mut connection).await?.drains))?)
}

async fn add(place: &Place, name: &str, start_at: Start) -> Result<(), Failure> {
    let (redis, mut connection) = place.connect().await?;
    let start_at = match start_at {
        Start::Oldest => StartAt::Oldest,
        Start::Now => StartAt::Now,
    };
    let registered = register(&redis, &mut connection, Some(name), start_at).await?;
    Ok(line(if registered.is_new {
        format!("{name} is registered; entries are kept until it has settled them")
    } else {
        format!("{name} was registered already; its cursor stays where it is")
    })?)
}

async fn forget_one(place: &Place, name: &str, yes: bool) -> Result<(), Failure> {
    let (redis, mut connection) = place.connect().await?;
    let status = read(&redis, &mut connection).await?;
    let Some(drain) = status.drains.iter().find(|drain| drain.name == name) else {
        return Err(Failure::Failed(format!("no drain is named {name}; see `spillway drains`")));
    };
    let loses = format!(
        "{} it has not settled ({} of them parked) and {}",
        count(drain.waiting, "webhook"),
        drain.parked,
        count(drain.dead_letters, "dead letter")
    );
    if !yes {
        return Err(Failure::Usage(format!("{name} would lose {loses}; add --yes to forget it")));
    }
    if let Some(seconds) = drain.last_seen_seconds.filter(|_| drain.owner.is_some()) {
        eprintln!(
            "{name} was seen {} ago: if it still runs, it registers again when it \
                   notices; stop it first",
            crate::out::age(seconds)
        );
    }
    forget(&redis, &mut connection, name).await?;
    Ok(line(format_args!("forgot {name}, with {loses}"))?)
}

/// A drain's name becomes part of key names, metrics and log lines.
fn name(text: &str) -> Result<String, String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if (1..=64).contains(&text.len()) && text.chars().all(is_plain) {
        Ok(text.to_owned())
    } else {
        Err("must be 1 to 64 letters, digits, '-', '_' or '.'".to_owned())
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_are_plain() {
        for good in ["http", "kafka", "audit-2.eu_west"] {
            assert!(super::name(good).is_ok(), "{good}");
        }
        for bad in ["", "a b", "a:b", "é", &"x".repeat(65)] {
            assert!(super::name(bad).is_err(), "{bad}");
        }
    }
}
