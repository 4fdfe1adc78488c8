//! `spillway cell drain`: waits until a cell is drained, and changes nothing.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use spillway_process::settings::parse_duration;
use tokio::time::{Instant, sleep};

use super::drained::{
    Blocker, ConsumerLeft, DrainLook, DrainScope, DrainVerdict, DrainWatch, OverflowLook,
};
use super::look::{CellLooker, DrainAim};
use crate::failure::Failure;
use crate::filter::shop;
use crate::format::OutputArgs;
use crate::health::RECEIVER;
use crate::out::{age, count, line};
use crate::place::CellArgs;

/// Time between two looks. A look that takes long is followed by a longer pause.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Least time between two lines of progress.
const PROGRESS_EVERY: Duration = Duration::from_secs(2);
/// Least time without anything new. A look takes place twice in it.
const QUIET_MIN: Duration = Duration::from_secs(1);
/// Shops that are named of those of which nothing was seen: as many as fit on a few lines.
const UNSEEN_MAX: usize = 10;

#[derive(Debug, Args)]
pub(super) struct DrainArguments {
    /// Wait only for webhooks of this shop; may be repeated. Reads all that waits, as `spillway top --exact` does
    #[arg(short, long = "shop", value_name = "SHOP", value_parser = lower_shop)]
    shops: Vec<String>,

    /// Wait only for webhooks of the shops in this file, one in a line
    #[arg(long, value_name = "FILE")]
    shops_file: Option<PathBuf>,

    /// Wait only for what is stored so far: others may come. For a cell that keeps some of its shops
    #[arg(long, conflicts_with_all = ["shops", "shops_file"])]
    so_far: bool,

    /// Leave out the lanes of this shop, because its webhooks fail; may be repeated. They stay in this cell
    #[arg(long = "except-shop", value_name = "SHOP", value_parser = lower_shop, conflicts_with_all = ["shops", "shops_file"])]
    except_shops: Vec<String>,

    /// Wait only for this consumer; may be repeated. Default: all; with --so-far or --shop, all except archives, which
    /// keep no order between cells
    #[arg(short, long = "consumer", value_name = "CONSUMER")]
    consumers: Vec<String>,

    /// Time for which nothing new must come, longer than ACK_TIMEOUT of the receivers; at least 1s
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = quiet)]
    quiet_for: Duration,

    /// Give up after this time; without it, wait as long as it takes
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    timeout: Option<Duration>,

    /// Admin address of a receiver of this cell, which knows what is in its overflow log; may be repeated, and each of
    /// them must answer. Default: 127.0.0.1:9811
    #[arg(long = "receiver", env = "RECEIVER_ADMIN_LISTEN", value_name = "ADDRESS")]
    receivers: Vec<String>,

    /// Count a Redis without a cell, or a cell without consumers and webhooks, as drained. Otherwise that is a failure,
    /// because mostly another Redis is meant
    #[arg(long)]
    allow_empty: bool,

    #[command(flatten)]
    output: OutputArgs,
}

/// Lines of progress on standard error: the first one at once, and another one if there is something new, but not too
/// often.
#[derive(Default)]
struct DrainProgress {
    said_at: Option<Instant>,
    said: String,
}

/// A drain that ended, or is given up.
struct DrainEnd<'a> {
    scope: &'a DrainScope,
    look: &'a DrainLook,
    blockers: &'a [Blocker],
    quiet_for: Duration,
    took: Duration,
}

fn quiet(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        long if long >= QUIET_MIN => Ok(long),
        _ => Err("must be 1s or more".to_owned()),
    }
}

/// A shop in lower case, as Shopify writes it.
fn lower_shop(text: &str) -> Result<String, &'static str> {
    shop(text).map(|shop| shop.to_ascii_lowercase())
}

impl DrainArguments {
    fn scope(&self) -> Result<DrainScope, Failure> {
        if self.so_far {
            return Ok(DrainScope::SoFar);
        }
        let mut shops: BTreeSet<String> = self.shops.iter().cloned().collect();
        if let Some(path) = &self.shops_file {
            shops.extend(shops_in(path)?);
        }
        Ok(if shops.is_empty() { DrainScope::All } else { DrainScope::Shops(Arc::new(shops)) })
    }

    fn aim(&self, scope: &DrainScope) -> DrainAim {
        DrainAim {
            scope: scope.clone(),
            except: self.except_shops.iter().cloned().collect(),
            consumers: self.consumers.clone(),
            receivers: self.receivers(),
            allows_empty: self.allow_empty,
        }
    }

    /// Admin addresses of receivers. An empty variable counts as not set.
    fn receivers(&self) -> Vec<String> {
        let given = self.receivers.iter().map(|address| address.trim().to_owned());
        let given: Vec<String> = given.filter(|address| !address.is_empty()).collect();
        if given.is_empty() { vec![RECEIVER.to_owned()] } else { given }
    }
}

/// Shops of a file. One without any is a mistake: it would stand for the whole cell.
fn shops_in(path: &Path) -> Result<Vec<String>, Failure> {
    let wrong = |problem: String| Failure::Usage(format!("{}: {problem}", path.display()));
    let text = fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    let lines =
        text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let shops =
        lines.map(|line| lower_shop(line).map_err(|problem| wrong(format!("{line:?}: {problem}"))));
    let shops: Vec<String> = shops.collect::<Result<_, _>>()?;
    match shops.is_empty() {
        true => Err(wrong("no shop is in this file".to_owned())),
        false => Ok(shops),
    }
}

/// Runs `spillway cell drain`.
pub(super) async fn run(place: CellArgs, arguments: DrainArguments) -> Result<ExitCode, Failure> {
    let began = Instant::now();
    let scope = arguments.scope()?;
    let mut looker = CellLooker::new(place, arguments.aim(&scope));
    let mut watch = DrainWatch::new(scope.clone(), arguments.quiet_for);
    let mut progress = DrainProgress::default();
    let mut last: Option<DrainLook> = None;
    loop {
        let looked_at = Instant::now();
        let mut verdict = DrainVerdict::Wait;
        match advance(&mut looker, &mut watch).await {
            Ok((found, look)) => {
                verdict = found;
                progress.tell(&text_of(&watch.blockers));
                last = Some(look);
            }
            Err(failure) if last.is_some() && is_passing(&failure) => {
                watch.on_failure();
                progress.tell(&text_of(&watch.blockers));
            }
            Err(failure) => return Err(failure),
        }
        let is_late = arguments.timeout.is_some_and(|timeout| began.elapsed() >= timeout);
        let is_over = matches!(verdict, DrainVerdict::Drained | DrainVerdict::Unknown);
        if let Some(look) = last.as_ref().filter(|_| is_over || is_late) {
            let end = DrainEnd {
                scope: &scope,
                look,
                blockers: &watch.blockers,
                quiet_for: arguments.quiet_for,
                took: began.elapsed(),
            };
            return end.tell(verdict, arguments.output);
        }
        let pause = LOOK_EVERY.max(3 * looked_at.elapsed());
        let left = arguments.timeout.map(|timeout| timeout.saturating_sub(began.elapsed()));
        sleep(left.map_or(pause, |left| pause.min(left))).await;
    }
}

/// Looks once, and remembers the time up to which webhooks are waited for.
async fn advance(
    looker: &mut CellLooker,
    watch: &mut DrainWatch,
) -> Result<(DrainVerdict, DrainLook), Failure> {
    let look = looker.look().await?;
    let verdict = watch.on_look(&look, Instant::now());
    if verdict == DrainVerdict::Marked {
        looker.mark().await?;
    }
    Ok((verdict, look))
}

/// True if Redis is restarted, away or no master any more, and may come back.
fn is_passing(failure: &Failure) -> bool {
    matches!(failure, Failure::Queue(error) if error.is_passing())
}

fn text_of(blockers: &[Blocker]) -> String {
    let all: Vec<String> = blockers.iter().map(ToString::to_string).collect();
    if all.is_empty() {
        "nothing is left; waits for anything new".to_owned()
    } else {
        all.join("; ")
    }
}

impl DrainProgress {
    fn tell(&mut self, text: &str) {
        let is_soon = self.said_at.is_some_and(|at| at.elapsed() < PROGRESS_EVERY);
        if self.said != text && !is_soon {
            self.said_at = Some(Instant::now());
            text.clone_into(&mut self.said);
            eprintln!("{text}");
        }
    }
}

impl DrainEnd<'_> {
    /// Prints the end. Nothing but a drained cell is a success.
    fn tell(&self, verdict: DrainVerdict, output: OutputArgs) -> Result<ExitCode, Failure> {
        let is_drained = verdict == DrainVerdict::Drained;
        if output.is_json() {
            line(self.object(is_drained))?;
        }
        match verdict {
            DrainVerdict::Drained if output.is_json() => {}
            DrainVerdict::Drained => line(self.text())?,
            DrainVerdict::Unknown => return Err(Failure::Failed(unknown_overflow())),
            DrainVerdict::Wait | DrainVerdict::Marked => {
                let took = age(self.took.as_secs_f64());
                let left = text_of(self.blockers);
                return Err(Failure::Failed(format!("not drained after {took}: {left}")));
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Words for what was checked.
    fn text(&self) -> String {
        let quiet_for = age(self.quiet_for.as_secs_f64());
        let drained = match self.scope {
            DrainScope::All => {
                format!("nothing waits in this cell, and nothing came for {quiet_for}")
            }
            DrainScope::SoFar => "nothing waits that was stored before".to_owned(),
            DrainScope::Shops(shops) => {
                let shops = count(u64::try_from(shops.len()).unwrap_or(u64::MAX), "shop");
                format!("nothing of {shops} waits, and nothing of them came for {quiet_for}")
            }
        };
        let names: Vec<&str> = self.look.consumers.iter().map(|left| left.name.as_str()).collect();
        let names = if names.is_empty() { "no consumer".to_owned() } else { names.join(", ") };
        let overflow = match self.look.overflow {
            OverflowLook::Absent => "no receiver has an overflow log",
            OverflowLook::Webhooks(_) | OverflowLook::Spilling | OverflowLook::Unknown => {
                "the overflow log is empty"
            }
        };
        let mut text = format!("drained: {drained}\nchecked: {names}; {overflow}");
        text.push_str(&text_of_unseen(&self.look.unseen));
        for left in self.look.consumers.iter().filter(|left| left.dead_letters > 0) {
            let ConsumerLeft { name, dead_letters, .. } = left;
            let letters = count(*dead_letters, "dead letter");
            text.push_str(&format!(
                "\n{name}: {letters} here: see `spillway dead list --consumer {name}`"
            ));
        }
        text
    }

    fn object(&self, is_drained: bool) -> Value {
        let consumer = |left: &ConsumerLeft| {
            json!({
                "name": left.name, "left": left.webhooks, "replays": left.replays, "state": left.held,
                "dead_letters": left.dead_letters,
            })
        };
        let (scope, shops) = match self.scope {
            DrainScope::All => ("all", None),
            DrainScope::SoFar => ("so_far", None),
            DrainScope::Shops(shops) => ("shops", Some(shops.len())),
        };
        let (has_overflow, overflow) = match self.look.overflow {
            OverflowLook::Absent => (false, Some(0)),
            OverflowLook::Webhooks(webhooks) => (true, Some(webhooks)),
            OverflowLook::Spilling | OverflowLook::Unknown => (true, None),
        };
        let blockers: Vec<String> = self.blockers.iter().map(ToString::to_string).collect();
        json!({
            "drained": is_drained, "scope": scope, "shops": shops, "unseen_shops": self.look.unseen,
            "consumers": self.look.consumers.iter().map(consumer).collect::<Vec<_>>(),
            "has_overflow_log": has_overflow, "overflow": overflow, "accepted": self.look.accepted,
            "quiet_seconds": self.quiet_for.as_secs_f64(), "took_seconds": self.took.as_secs_f64(),
            "blockers": blockers,
        })
    }
}

/// A line about the shops of which nothing was seen: their names may be wrong. Empty if there are none.
fn text_of_unseen(unseen: &BTreeSet<String>) -> String {
    let mut names: Vec<&str> = unseen.iter().map(String::as_str).take(UNSEEN_MAX).collect();
    if names.is_empty() {
        return String::new();
    }
    if unseen.len() > names.len() {
        names.push("…");
    }
    let shops = count(u64::try_from(unseen.len()).unwrap_or(u64::MAX), "shop");
    format!(
        "\nno webhook of {shops} was seen during this command; check the name if any should have waited: {}",
        names.join(", ")
    )
}

fn unknown_overflow() -> String {
    "nothing is left in Redis, but a receiver of this cell has an overflow log. Either not every receiver that was asked \
     answers, or none of them has this log: give the ADMIN_LISTEN address of each receiver of this cell with --receiver. \
     If it does not run, start it: it restores the log"
        .to_owned()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        drain: DrainArguments,
    }

    fn parsed(flags: &[&str]) -> Result<DrainArguments, clap::Error> {
        Command::try_parse_from([&["x"], flags].concat()).map(|command| command.drain)
    }

    #[test]
    fn the_scope_is_the_cell_unless_less_is_named() {
        let scope = |flags: &[&str]| parsed(flags).expect("good flags").scope().expect("a scope");
        assert_eq!(scope(&[]), DrainScope::All);
        assert_eq!(scope(&["--so-far", "--except-shop", "a.example"]), DrainScope::SoFar);
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        writeln!(file, "# moved\nb.example\n\n  c.example").expect("written");
        let path = file.path().display().to_string();
        let shops = ["a.example", "b.example", "c.example"].map(str::to_owned);
        let expected = DrainScope::Shops(Arc::new(BTreeSet::from(shops)));
        assert_eq!(scope(&["--shop", "a.example", "--shops-file", &path]), expected);
        for wrong in [
            &["--so-far", "--shop", "a.example"][..],
            &["--shop", "a.example", "--except-shop", "b.example"],
            &["--shop", "nonsense"],
            &["--quiet-for", "900ms"],
        ] {
            assert!(parsed(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_file_without_shops_never_stands_for_the_whole_cell() {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        writeln!(file, "# none").expect("written");
        let path = file.path().display().to_string();
        let told = |file: &str| {
            let arguments = parsed(&["--shops-file", file]).expect("good flags");
            arguments.scope().expect_err("no scope").to_string()
        };
        assert!(told(&path).contains("no shop"), "{}", told(&path));
        assert!(told("/nonexistent/shops").contains("/nonexistent/shops"));
    }

    #[test]
    fn shops_are_compared_in_lower_case() {
        let shops = parsed(&["--shop", "A.Example"]).expect("good flags").scope().expect("a scope");
        assert_eq!(shops, DrainScope::Shops(Arc::new(BTreeSet::from(["a.example".to_owned()]))));
        let flags = ["--so-far", "--except-shop", "B.example"];
        let arguments = parsed(&flags).expect("good flags");
        let aim = arguments.aim(&DrainScope::SoFar);
        assert_eq!(aim.except, BTreeSet::from(["b.example".to_owned()]));
    }

    #[test]
    fn shops_of_which_nothing_was_seen_are_named() {
        let of = |shops: std::ops::Range<usize>| {
            text_of_unseen(&shops.map(|number| format!("{number:02}.example")).collect())
        };
        assert_eq!(of(0..0), "");
        assert!(
            of(0..1).contains("no webhook of 1 shop was") && of(0..1).ends_with(": 00.example")
        );
        assert!(of(0..11).contains("11 shops") && of(0..11).ends_with("09.example, …"));
    }

    #[test]
    fn an_empty_variable_stands_for_the_default_receiver() {
        let receivers = |flags: &[&str]| parsed(flags).expect("good flags").receivers();
        assert_eq!(receivers(&["--receiver", ""]), [RECEIVER]);
        assert_eq!(receivers(&["--receiver", "a:1", "--receiver", "b:2"]), ["a:1", "b:2"]);
    }
}
