//! `spillway forget`: purges the data of a customer, or of a shop, from everything that the cell holds.
//!
//! The path of a purge: [`order`] (who is meant, and up to which webhook) → [`waiting`] (lanes, main stream and
//! replays of each consumer: its leader drops them) → [`dead`] (dead letters) → [`remains`] (is any of it left in
//! Redis?) → [`spill`] (overflow log on this machine) → [`archived`] (objects of the archive) → [`purge`] (all of
//! that, the record, and the rewrite of the AOF). [`due`] purges for redactions that were delivered, [`list`] shows
//! them. Each step may be repeated, so a purge that was cut off is finished by the next one.

mod archived;
mod dead;
mod due;
mod list;
mod order;
mod purge;
mod remains;
mod report;
mod spill;
mod waiting;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use spillway_archive::args::ArchiveArgs;
use spillway_queue::read::StreamReader;
use spillway_webhook::redaction::Person;
use spillway_webhook::{Redaction, StreamId};

use self::order::{PurgeOrder, PurgeOrders};
use self::purge::PurgePlace;
use crate::consent::Confirmation;
use crate::failure::Failure;
use crate::filter;
use crate::format::OutputArgs;
use crate::place::CellArgs;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    place: CellArgs,

    #[command(flatten)]
    archive: ArchiveArgs,

    /// Overflow log of a receiver on this machine: what waits in it is reported. Not set: it is not looked at
    #[arg(long, env = "SPILL_DIR")]
    spill_dir: Option<PathBuf>,

    #[command(flatten)]
    mode: ForgetMode,

    #[command(flatten)]
    person: PersonArguments,

    /// Time after its delivery within which a redaction is carried out: --due begins after half of it
    #[arg(long, env = "REDACT_WITHIN", value_name = "DURATION", default_value = "24h", value_parser = within)]
    within: Duration,

    #[command(flatten)]
    confirmation: Confirmation,

    /// Report what would be purged, and change nothing; by hand, this is the default without --yes
    #[arg(long, conflicts_with = "yes")]
    dry_run: bool,

    #[command(flatten)]
    output: OutputArgs,
}

/// Who is meant.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct ForgetMode {
    /// Carry out all redactions that were delivered, if one of them is due; needs no --yes
    #[arg(long)]
    due: bool,

    /// List redactions that are not carried out, and records of purges
    #[arg(long)]
    list: bool,

    /// Purge everything of this shop; with --customer, --email, --phone or --order, of one customer
    #[arg(short, long, value_parser = filter::shop)]
    shop: Option<String>,
}

/// A customer of a shop.
#[derive(Debug, Args)]
struct PersonArguments {
    /// Id of the customer
    #[arg(long, requires = "shop")]
    customer: Option<u64>,

    /// Email address of the customer
    #[arg(long, requires = "shop", value_parser = NonEmptyStringValueParser::new())]
    email: Option<String>,

    /// Phone number of the customer, with its country
    #[arg(long, requires = "shop", value_parser = NonEmptyStringValueParser::new())]
    phone: Option<String>,

    /// Id of an order of the customer; may be given several times
    #[arg(long, requires = "shop")]
    order: Vec<u64>,
}

/// Least time within which a redaction is carried out. A test may be as impatient as that.
const WITHIN_MIN: Duration = Duration::from_secs(1);

fn within(text: &str) -> Result<Duration, String> {
    let parsed = humantime::parse_duration(text.trim()).map_err(|error| error.to_string())?;
    if parsed < WITHIN_MIN { Err("must be at least 1s".to_owned()) } else { Ok(parsed) }
}

impl PersonArguments {
    /// The customer; `None` if no flag was given, so that all of the shop is meant.
    fn person(self) -> Option<Person> {
        let Self { customer, email, phone, order } = self;
        let person = Person { id: customer, email, phone, orders: order };
        (person != Person::default()).then_some(person)
    }
}

/// Runs `spillway forget`.
pub(crate) async fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let Arguments {
        place,
        archive,
        spill_dir,
        mode,
        person,
        within,
        confirmation,
        dry_run,
        output,
    } = arguments;
    if mode.list {
        list::run(&place, output).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut purge = PurgePlace::open(place, archive, spill_dir).await?;
    let Some(shop) = mode.shop else {
        debug_assert!(mode.due, "BUG: one mode is required");
        return due::run(&mut purge, within, dry_run, output).await;
    };
    let redaction = match person.person() {
        Some(person) => {
            Redaction::of_person(shop, person).map_err(|error| Failure::Usage(error.to_string()))?
        }
        None => Redaction::of_shop(shop),
    };
    let orders = PurgeOrders::new(vec![PurgeOrder::until(redaction, newest(&mut purge).await?)]);
    let ended = purge.run(&orders, !confirmation.yes).await?;
    ended.print_by_hand(output)
}

/// Id of the newest entry: everything up to it is meant.
async fn newest(purge: &mut PurgePlace) -> Result<StreamId, Failure> {
    if purge.status.consumers.is_empty() && purge.status.queue.packs == 0 {
        // There may be no stream yet.
        return Ok(StreamId::ZERO);
    }
    let reader = StreamReader::new(purge.redis.clone(), "");
    Ok(reader.last(&mut purge.connection).await?)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        forget: Arguments,
    }

    fn parsed(flags: &[&str]) -> Result<Arguments, clap::Error> {
        let flags = [&["spillway"], flags].concat();
        Command::try_parse_from(flags).map(|command| command.forget)
    }

    #[test]
    fn one_mode_is_given_and_a_customer_has_a_shop() {
        assert!(parsed(&["--due"]).is_ok() && parsed(&["--list"]).is_ok());
        assert!(parsed(&["--shop", "a.example", "--customer", "12", "--order", "1"]).is_ok());
        for wrong in [
            &[][..],
            &["--due", "--list"],
            &["--due", "--shop", "a.example"],
            &["--customer", "12"],
            &["--due", "--customer", "12"],
            &["--shop", "a.example", "--email", ""],
            &["--shop", "a.example", "--customer", "ann"],
            &["--shop", "a.example", "--yes", "--dry-run"],
            &["--due", "--within", "10ms"],
            &["--due", "--within", "soon"],
        ] {
            assert!(parsed(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn all_of_a_shop_is_meant_unless_a_customer_is_named() {
        let of = |flags: &[&str]| parsed(flags).expect("good flags").person.person();
        assert_eq!(of(&["--shop", "a.example"]), None);
        let expected = Person { orders: vec![1, 2], ..Person::default() };
        let flags = ["--shop", "a.example", "--order", "1", "--order", "2"];
        assert_eq!(of(&flags), Some(expected));
        assert_eq!(parsed(&["--due"]).expect("good flags").within, Duration::from_secs(86_400));
    }
}
