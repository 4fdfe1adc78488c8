//! `spillway forget`: purges the data of a customer, or of a shop, from everything that the cell holds.
//!
//! The path of a purge: [`order`] and [`hand`] (who is meant, and up to which webhook) → [`waiting`] (lanes, main
//! stream and replays of each consumer: its leader drops them) → [`dead`] (dead letters) → [`remains`] (is any of it
//! left in Redis?) → [`spill`] (overflow log on this machine) → [`archived`] (objects of the archive; [`finished`] days
//! are left out) → [`purge`] (all of that, the record, and the rewrite of the AOF). [`due`] purges for redactions that
//! were delivered, [`list`] shows them. Each step may be repeated, so a purge that was cut off is finished by the next
//! one.

mod archived;
mod dead;
mod due;
mod finished;
pub(crate) mod hand;
mod list;
mod order;
mod purge;
mod remains;
mod report;
mod spill;
mod waiting;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, value_parser};
use spillway_archive::args::ArchiveArgs;
use spillway_process::settings::parse_duration;
use spillway_queue::dead::now_ms;
use spillway_queue::read::StreamReader;
use spillway_queue::redactions::note_by_hand;
use spillway_webhook::StreamId;
use spillway_webhook::redaction::{Person, is_email, is_phone};

use self::hand::HandOrder;
use self::order::{PurgeOrder, PurgeOrders};
use self::purge::{PurgePlace, PurgeReach};
use crate::audited::{self, Actor, ChangeOrder, audited};
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

    #[command(flatten)]
    reach: ReachArguments,

    /// Time after its delivery within which a redaction is carried out: --due begins after half of it
    #[arg(long, env = "REDACT_WITHIN", value_name = "DURATION", default_value = "24h", value_parser = redact_within)]
    redact_within: Duration,

    /// With --due: look again and again, with this pause, until SIGTERM; for containers, which have no timers
    #[arg(long, value_name = "DURATION", requires = "due", conflicts_with_all = ["list", "shop"], value_parser = pause)]
    every: Option<Duration>,

    #[command(flatten)]
    confirmation: Confirmation,

    /// Report what would be purged, and change nothing; by hand, this is the default without --yes
    #[arg(long, conflicts_with = "yes")]
    dry_run: bool,

    #[command(flatten)]
    output: OutputArgs,
}

/// Reach of a purge.
#[derive(Debug, Args)]
struct ReachArguments {
    /// Also purge what the archive holds of this cell, as in the names of its objects; only of one that is gone; may be
    /// given several times
    #[arg(long, env = "FORGET_CELLS", value_name = "ID", value_delimiter = ',', value_parser = cell)]
    forget_cells: Vec<u32>,

    /// Time after its writing from which an object of the archive is touched
    #[arg(long, env = "FORGET_SETTLED_AFTER", default_value = "10m", hide = true, value_parser = parse_duration)]
    forget_settled_after: Duration,

    /// Time for which a purge waits until nothing is left in Redis. What takes longer is left to the next purge
    #[arg(long, env = "FORGET_PATIENCE", default_value = "10s", hide = true, value_parser = parse_duration)]
    forget_patience: Duration,
}

/// Mode of the command.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct ForgetMode {
    /// Carry out all redactions that were delivered, if one of them is due; needs no --yes
    #[arg(long)]
    due: bool,

    /// List redactions that are not carried out, and records of purges
    #[arg(long)]
    list: bool,

    /// Purge a customer of this shop, named by --customer, --email, --phone or --order, or everything of it (--all)
    #[arg(short, long, value_parser = filter::shop)]
    shop: Option<String>,
}

/// A customer of a shop.
#[derive(Debug, Args)]
struct PersonArguments {
    /// Id of the customer
    #[arg(long, requires = "shop", conflicts_with_all = ["due", "list"], value_parser = value_parser!(u64).range(1..))]
    customer: Option<u64>,

    /// Email address of the customer
    #[arg(long, requires = "shop", conflicts_with_all = ["due", "list"], value_parser = email)]
    email: Option<String>,

    /// Phone number of the customer, with its country
    #[arg(long, requires = "shop", conflicts_with_all = ["due", "list"], value_parser = phone)]
    phone: Option<String>,

    /// Id of an order of the customer; may be given several times
    #[arg(long, requires = "shop", conflicts_with_all = ["due", "list"], value_parser = value_parser!(u64).range(1..))]
    order: Vec<u64>,

    /// Everything of the shop
    #[arg(long, requires = "shop", conflicts_with_all = ["due", "list", "customer", "email", "phone", "order"])]
    all: bool,

    /// Only webhooks for this app of APPS_FILE; without it, those for all apps
    #[arg(long, requires = "shop", conflicts_with_all = ["due", "list"], value_parser = NonEmptyStringValueParser::new())]
    app: Option<String>,
}

/// Least time within which a redaction is carried out. A test may be as impatient as that.
const WITHIN_MIN: Duration = Duration::from_secs(1);

/// Parses REDACT_WITHIN.
pub(crate) fn redact_within(text: &str) -> Result<Duration, String> {
    let parsed = parse_duration(text)?;
    if parsed < WITHIN_MIN { Err("must be at least 1s".to_owned()) } else { Ok(parsed) }
}

/// Least pause of `--every`: each look asks Redis, and a purge is due once in hours.
const PAUSE_MIN: Duration = Duration::from_secs(1);

fn pause(text: &str) -> Result<Duration, String> {
    let parsed = parse_duration(text)?;
    if parsed < PAUSE_MIN { Err("must be at least 1s".to_owned()) } else { Ok(parsed) }
}

fn email(text: &str) -> Result<String, &'static str> {
    if is_email(text) { Ok(text.to_owned()) } else { Err("must be an email address") }
}

fn phone(text: &str) -> Result<String, &'static str> {
    let wrong = "must have 7 digits or more, and not one digit only";
    if is_phone(text) { Ok(text.to_owned()) } else { Err(wrong) }
}

fn cell(text: &str) -> Result<u32, &'static str> {
    let wrong = "must be the id of a cell, such as a1b2c3d4";
    u32::from_str_radix(text.trim(), 16).map_err(|_| wrong)
}

impl PersonArguments {
    /// The app and the customer; no customer if all of the shop is meant.
    fn split(self) -> Result<(Option<String>, Option<Person>), Failure> {
        let Self { customer, email, phone, order, all, app } = self;
        let person = Person { id: customer, email, phone, orders: order };
        let person = (person != Person::default()).then_some(person);
        if person.is_none() && !all {
            let told = "name the customer (--customer, --email, --phone, --order), or purge everything of the shop with --all";
            return Err(Failure::Usage(told.to_owned()));
        }
        Ok((app, person))
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
        reach,
        redact_within,
        every,
        confirmation,
        dry_run,
        output,
    } = arguments;
    if mode.list {
        list::run(&place, output).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let reach = PurgeReach {
        cells: reach.forget_cells,
        settled_after: reach.forget_settled_after,
        patience: reach.forget_patience,
        is_by_hand: !mode.due,
    };
    let Some(shop) = mode.shop else {
        debug_assert!(mode.due, "BUG: one mode is required");
        return due::run_all(every, async || {
            let archive = archive.clone();
            let spill_dir = spill_dir.clone();
            if !dry_run {
                trim_audit(&place).await;
            }
            let mut purge =
                PurgePlace::open(place.clone(), archive, spill_dir, reach.clone()).await?;
            due::run(&mut purge, redact_within, dry_run, output).await
        })
        .await;
    };
    let mut purge = PurgePlace::open(place, archive, spill_dir, reach).await?;
    let (app, person) = person.split()?;
    let order = HandOrder { shop, app, person, through: newest(&mut purge).await? };
    by_hand(&mut purge, &order, confirmation.yes, output).await
}

/// Has the audit forget what is old. A purge is more urgent: if that fails, it is only a warning.
async fn trim_audit(place: &CellArgs) {
    if let Err(failure) = audited::trim(place).await {
        // Unlike `eprintln!`, it does not panic.
        writeln!(std::io::stderr(), "spillway: old records of the audit stay: {failure}").ok();
    }
}

/// Carries out an order by hand. It is noted first: `--due` finishes a purge that is cut off.
async fn by_hand(
    purge: &mut PurgePlace,
    order: &HandOrder,
    is_confirmed: bool,
    output: OutputArgs,
) -> Result<ExitCode, Failure> {
    order.redaction().map_err(Failure::Usage)?;
    if !is_confirmed {
        return carry_out(purge, order, None, output).await;
    }
    // The audit names no person: it is kept for longer than the person is.
    let meant = if order.person.is_some() { "a customer" } else { "everything" };
    let filter = format!("{meant} of shop {}", order.shop);
    let change = ChangeOrder { verb: "forget", consumer: String::new(), filter };
    let redis = purge.redis.clone();
    let audit = purge.connection.clone();
    audited(&redis, &audit, &Actor::of_command(), change, async {
        let number = order.number();
        let text = order.to_json();
        let note = note_by_hand(&purge.redis, &mut purge.connection, number, &text).await?;
        let ended = carry_out(purge, order, Some(note), output).await?;
        Ok((ended, 1_u64))
    })
    .await
}

/// Carries out an order, or reports what would be purged if it is not noted.
async fn carry_out(
    purge: &mut PurgePlace,
    order: &HandOrder,
    note: Option<String>,
    output: OutputArgs,
) -> Result<ExitCode, Failure> {
    let is_dry_run = note.is_none();
    let order = PurgeOrder::by_hand(order, note).map_err(Failure::Usage)?;
    match purge.run(&PurgeOrders::new(vec![order]), is_dry_run).await? {
        Some(ended) => ended.print_by_hand(output),
        None => Err(Failure::Failed(
            "another purge is at work: this order is noted, and `spillway forget --due` carries it out"
                .to_owned(),
        )),
    }
}

/// Id up to which everything is meant: that of the newest entry, or of now. An archive may hold what a new and empty Redis
/// never had.
async fn newest(purge: &mut PurgePlace) -> Result<StreamId, Failure> {
    let now = StreamId { ms: now_ms(&mut purge.connection).await?, seq: 0 };
    if purge.status.consumers.is_empty() && purge.status.queue.packs == 0 {
        // There may be no stream yet.
        return Ok(now);
    }
    let reader = StreamReader::new(purge.redis.clone(), "");
    Ok(now.max(reader.last(&mut purge.connection).await?))
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
        let cells = parsed(&["--due", "--every", "1h", "--forget-cells", "a1,b2"]);
        assert_eq!(cells.expect("good flags").reach.forget_cells, [0xa1, 0xb2]);
        assert!(parsed(&["--shop", "a.example", "--customer", "12", "--order", "1"]).is_ok());
        for wrong in [
            &[][..],
            &["--due", "--list"],
            &["--due", "--shop", "a.example"],
            &["--customer", "12"],
            &["--due", "--customer", "12"],
            &["--shop", "a.example", "--email", ""],
            &["--shop", "a.example", "--customer", "ann"],
            &["--shop", "a.example", "--customer", "0"],
            &["--shop", "a.example", "--email", "none"],
            &["--shop", "a.example", "--phone", "0000000000"],
            &["--shop", "a.example", "--yes", "--dry-run"],
            &["--due", "--app", "one"],
            &["--due", "--forget-cells", "here"],
            &["--due", "--redact-within", "10ms"],
            &["--due", "--redact-within", "soon"],
            &["--due", "--redact-within", "30M"],
            &["--due", "--every", "0s"],
            &["--list", "--every", "1h"],
            &["--shop", "a.example", "--all", "--every", "1h"],
        ] {
            assert!(parsed(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn all_of_a_shop_is_meant_only_if_that_is_said() {
        let of = |flags: &[&str]| {
            let split = parsed(flags).expect("good flags").person.split();
            split.map(|(_, person)| person).map_err(|failure| failure.to_string())
        };
        for flags in [&["--shop", "a.example"][..], &["--shop", "a.example", "--app", "one"]] {
            assert!(of(flags).is_err_and(|told| told.contains("--all")));
            assert_eq!(of(&[flags, &["--all"]].concat()), Ok(None));
        }
        assert!(parsed(&["--shop", "a.example", "--all", "--customer", "12"]).is_err());
        let expected = Person { orders: vec![1, 2], ..Person::default() };
        let flags = ["--shop", "a.example", "--order", "1", "--order", "2"];
        assert_eq!(of(&flags), Ok(Some(expected)));
        assert_eq!(
            parsed(&["--due"]).expect("good flags").redact_within,
            Duration::from_secs(86_400)
        );
    }
}
