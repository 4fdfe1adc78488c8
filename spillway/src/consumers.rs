//! `spillway consumers`: the registered consumers. An entry is freed once all of them have settled it.

use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;
use spillway_queue::consumers::{ConsumerName, StartAt, forget, register};
use spillway_queue::status::read;

use crate::audited::{Actor, ChangeOrder, audited};
use crate::consent::{Confirmation, dry_run};
use crate::failure::Failure;
use crate::format::OutputArgs;
use crate::out::{count, line};
use crate::place::CellArgs;
use crate::status::consumers_text;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    place: CellArgs,

    #[command(flatten)]
    output: OutputArgs,

    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List consumers, and the entries that each keeps from being freed (the default)
    List,
    /// Register a consumer before its first start; from then on, entries are kept for it
    Add {
        /// Name of the consumer, as its process has it in CONSUMER: http for a downstreamer and kafka for
        /// a Kafka producer by default; archive for the archiver
        name: ConsumerName,
        /// Position at which it begins
        #[arg(long, value_enum, env = "START_AT", default_value = "oldest")]
        start_at: CursorStart,
    },
    /// Forget a consumer for good, with its lanes and dead letters; frees the entries that only it
    /// still needed
    Forget {
        /// Name of the consumer
        name: ConsumerName,
        #[command(flatten)]
        confirmation: Confirmation,
    },
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum CursorStart {
    /// The oldest entry left
    Oldest,
    /// The next entry that is accepted
    Now,
}

/// Runs `spillway consumers`.
pub(crate) async fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let Arguments { place, output, action } = arguments;
    match action.unwrap_or(Action::List) {
        Action::List => list(&place, output).await?,
        Action::Add { name, start_at } => add(&place, &name, start_at, output).await?,
        Action::Forget { name, confirmation } => {
            forget_one(&place, &name, confirmation, output).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(place: &CellArgs, output: OutputArgs) -> Result<(), Failure> {
    let (redis, mut connection) = place.connect().await?;
    let consumers = read(&redis, &mut connection).await?.consumers;
    if output.is_json() {
        return Ok(consumers.iter().try_for_each(|consumer| line(json!(consumer)))?);
    }
    Ok(line(consumers_text(&consumers, output))?)
}

async fn add(
    place: &CellArgs,
    name: &str,
    start_at: CursorStart,
    output: OutputArgs,
) -> Result<(), Failure> {
    let (redis, mut connection) = place.connect().await?;
    let start_at = match start_at {
        CursorStart::Oldest => StartAt::Oldest,
        CursorStart::Now => StartAt::Now,
    };
    let audit = connection.clone();
    let change = ChangeOrder {
        verb: "consumers add",
        consumer: name.to_owned(),
        filter: "everything".to_owned(),
    };
    let registered = audited(&redis, &audit, &Actor::of_command(), change, async {
        let registered = register(&redis, &mut connection, Some(name), start_at).await?;
        let number = u64::from(registered.is_new);
        Ok((registered, number))
    })
    .await?;
    if output.is_json() {
        return Ok(line(json!({ "consumer": name, "is_new": registered.is_new }))?);
    }
    Ok(line(if registered.is_new {
        format!("{name} is registered; entries are kept until it has settled them")
    } else {
        format!("{name} was registered already; its cursor stays where it is")
    })?)
}

async fn forget_one(
    place: &CellArgs,
    name: &str,
    confirmation: Confirmation,
    output: OutputArgs,
) -> Result<(), Failure> {
    let (redis, mut connection) = place.connect().await?;
    let status = read(&redis, &mut connection).await?;
    let Some(consumer) = status.consumers.iter().find(|consumer| consumer.name == name) else {
        return Err(Failure::Failed(format!(
            "no consumer is named {name}; see `spillway consumers`"
        )));
    };
    let loses = format!(
        "{} it has not settled ({} of them outside the main stream: in lanes, or to be replayed) and {}",
        count(consumer.waiting, "webhook"),
        consumer.parked,
        count(consumer.dead.letters, "dead letter")
    );
    let object = json!({
        "consumer": name, "dry_run": !confirmation.yes, "waiting": consumer.waiting,
        "parked": consumer.parked, "dead_letters": consumer.dead.letters,
    });
    if !confirmation.yes && output.is_json() {
        return Ok(line(object)?);
    }
    if !confirmation.yes {
        let effect = format!("{name} would lose {loses}, for good");
        return Ok(line(dry_run(&effect, "forget it"))?);
    }
    if let Some(seconds) = consumer.last_seen.ago_seconds.filter(|_| consumer.leader.is_some()) {
        eprintln!(
            "{name} was seen {} ago: if it still runs, it registers again when it \
                   notices; stop it first",
            crate::out::age(seconds)
        );
    }
    let audit = connection.clone();
    let change = ChangeOrder {
        verb: "consumers forget",
        consumer: name.to_owned(),
        filter: "everything".to_owned(),
    };
    let loses_number = consumer.waiting + consumer.dead.letters;
    audited(&redis, &audit, &Actor::of_command(), change, async {
        forget(&redis, &mut connection, name).await?;
        Ok(((), loses_number))
    })
    .await?;
    if output.is_json() {
        return Ok(line(object)?);
    }
    Ok(line(format_args!("forgot {name}, with {loses}"))?)
}
