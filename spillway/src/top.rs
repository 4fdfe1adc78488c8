//! `spillway top`: which shop, topic or resource has the most waiting webhooks, and since when.
//!
//! Reads for about a second, a few packs at many positions of the queue. If that covers the whole
//! queue, the numbers are exact. Otherwise they are scaled up from the sample, and each number has
//! its margin of error.

mod regions;
mod tally;

use std::ops::ControlFlow;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use serde_json::json;
use spillway_process::settings::parse_duration;
use spillway_queue::controls::{Filter, Pause};
use spillway_queue::status;
use spillway_webhook::freshness::rfc3339;

use crate::failure::Failure;
use crate::filter::FilterArguments;
use crate::format::OutputArgs;
use crate::out::{Progress, age, count, float, line, now_ms, table};
use crate::place::{CellArgs, ConsumerArgs};
use crate::walk::{Fetched, Look, Waiting};
use regions::Regions;
use tally::{PackCounts, Row, TopTally};

/// Regions that are read in one round trip.
const READ_TOGETHER: usize = 8;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    place: ConsumerArgs,

    /// Group to count by
    #[arg(long, value_enum, default_value = "shop")]
    by: By,

    #[command(flatten)]
    filter: FilterArguments,

    /// Number of lines
    #[arg(short = 'n', long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,

    /// Time after which the counts are estimated from what was read
    #[arg(long, value_name = "DURATION", default_value = "1500ms", value_parser = parse_duration)]
    budget: Duration,

    /// Read everything, however long it takes
    #[arg(long)]
    exact: bool,

    #[command(flatten)]
    output: OutputArgs,
}

/// Group to count by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum)]
pub(crate) enum By {
    /// Shop domains
    Shop,
    /// Topics
    Topic,
    /// Resources: shop, type and id
    Resource,
}

/// Question for the largest groups.
#[derive(Debug, Clone)]
pub(crate) struct TopQuestion {
    /// Group to count by.
    pub by: By,
    /// Webhooks that are counted.
    pub filter: Filter,
    /// Time after which the counts are estimated; `None`: everything is read.
    pub budget: Option<Duration>,
}

/// Counts of what waits for a consumer.
pub(crate) struct TopFound {
    /// Webhooks that wait.
    pub waiting: Waiting,
    tally: TopTally,
    /// Pauses in force.
    pub pauses: Vec<Pause>,
}

impl TopFound {
    /// True if everything was counted.
    pub(crate) fn is_exact(&self) -> bool {
        self.tally.is_exact()
    }

    /// The largest groups, the largest first.
    pub(crate) fn rows(&self, limit: usize) -> Vec<Row> {
        self.tally.rows(limit)
    }

    /// Webhooks of all groups that match the filter, counted or estimated.
    pub(crate) fn total(&self) -> u64 {
        self.tally.total()
    }

    /// Time at which the oldest webhook that matches was received, of those read.
    pub(crate) fn oldest_ms(&self) -> Option<u64> {
        self.tally.oldest_ms()
    }

    /// Pauses that hold exactly what a row counts.
    pub(crate) fn pauses_of(&self, by: By, name: &str) -> Vec<String> {
        let own = self.pauses.iter().filter(|pause| is_of(pause, by, name));
        own.map(|pause| pause.filter.to_string()).collect()
    }
}

/// Shop and resource of a row of [`By::Resource`]. A shop's domain has no space.
pub(crate) fn shop_and_resource(name: &str) -> (&str, &str) {
    name.split_once(' ').unwrap_or_default()
}

/// Counts what waits for a consumer, as far as the budget goes.
pub(crate) async fn tally(
    cell: &CellArgs,
    consumer: &str,
    question: &TopQuestion,
) -> Result<TopFound, Failure> {
    let began = Instant::now();
    let mut waiting = Waiting::for_consumer(cell, consumer).await?;
    let tally = read(&mut waiting, question, began).await?;
    let redis = waiting.redis.clone();
    let status = status::read(&redis, waiting.connection()).await?;
    let own = status.consumers.into_iter().find(|known| known.name == consumer);
    let pauses = own.map(|own| own.pauses).unwrap_or_default();
    Ok(TopFound { waiting, tally, pauses })
}

/// Counts and prints.
pub(crate) async fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let consumer = arguments.place.resolve().await?;
    let question = TopQuestion {
        by: arguments.by,
        filter: arguments.filter.clone().filter(),
        budget: (!arguments.exact).then_some(arguments.budget),
    };
    let found = tally(&arguments.place.cell, &consumer, &question).await?;
    let rows = found.rows(arguments.limit as usize);
    let TopFound { waiting, tally, pauses } = found;
    if arguments.output.is_json() {
        line(object(&waiting, &tally, &rows, &pauses))?;
    } else {
        line(text(&arguments, &waiting, &tally, &rows, &pauses))?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn read(
    waiting: &mut Waiting,
    question: &TopQuestion,
    began: Instant,
) -> Result<TopTally, Failure> {
    let TopQuestion { by, filter, budget } = question.clone();
    let is_filtered = !filter.is_empty();
    let look = move |look: &Look<'_>| {
        let mut seen = PackCounts::default();
        for met in look.webhooks() {
            seen.webhooks += 1;
            if is_filtered && !met.is_meant(&filter) {
                continue;
            }
            let key = match by {
                By::Shop => met.shop(),
                By::Topic => met.topic(),
                By::Resource => format!("{} {}", met.shop(), met.resource()),
            };
            seen.count(key, met.view.received_at_ms);
        }
        seen
    };
    let mut tally = TopTally::default();
    let lanes = waiting.lanes(&Filter::default()).await?;
    waiting
        .aside(&lanes, look.clone(), |seen| {
            tally.add_beside(seen);
            ControlFlow::Continue(())
        })
        .await?;
    let is_over = || budget.is_some_and(|budget| began.elapsed() >= budget);
    sample(waiting, look, is_over, &mut tally).await?;
    Ok(tally)
}

/// Reads the main stream, until `is_over` or all is read.
async fn sample(
    waiting: &mut Waiting,
    look: impl Fn(&Look<'_>) -> PackCounts + Send + Sync + 'static,
    is_over: impl Fn() -> bool,
    tally: &mut TopTally,
) -> Result<(), Failure> {
    let Some(first) = waiting.first().await? else { return Ok(()) };
    let mut regions = Regions::new(first, waiting.last, waiting.packs);
    let mut looks = waiting.looks(look);
    let mut progress = Progress::new();
    loop {
        let is_enough = is_over() && regions.is_spread();
        if is_enough || regions.is_read() {
            break;
        }
        let together = regions.next(READ_TOGETHER);
        let spans: Vec<_> = together.iter().map(|one| (one.from, one.to, one.take)).collect();
        for (region, entries) in together.iter().zip(waiting.fronts(&spans).await?) {
            let ids: Vec<_> = entries.iter().map(|entry| entry.id).collect();
            regions.read(region, &ids);
            looks.begin(Fetched::Main(entries));
        }
        while let Some(packs) = looks.next(READ_TOGETHER).await? {
            tally.add_run(packs);
        }
        progress.tell(|| format!("read {} of {} webhooks", tally.read(), waiting.count));
    }
    while let Some(packs) = looks.next(0).await? {
        tally.add_run(packs);
    }
    if !regions.is_read() {
        tally.stand_for(&regions.unread(), &regions.in_time(), waiting.count);
    }
    Ok(())
}

fn object(
    waiting: &Waiting,
    tally: &TopTally,
    rows: &[Row],
    pauses: &[Pause],
) -> serde_json::Value {
    let row = |row: &Row| {
        json!({
            "name": row.name,
            "waiting": row.waiting,
            "may_be_off_by": row.off_by,
            "oldest_received_at": rfc3339(row.oldest_ms),
            "newest_received_at": rfc3339(row.newest_ms),
        })
    };
    json!({
        "consumer": waiting.consumer,
        "registered": waiting.is_registered,
        "waiting": waiting.count,
        "exact": tally.is_exact(),
        "read": tally.read(),
        "rows": rows.iter().map(row).collect::<Vec<_>>(),
        "pauses": pauses,
    })
}

fn text(
    arguments: &Arguments,
    waiting: &Waiting,
    tally: &TopTally,
    rows: &[Row],
    pauses: &[Pause],
) -> String {
    let mut text = format!("{} for {}", count(waiting.count, "waiting webhook"), waiting.consumer);
    if !waiting.is_registered {
        text.push_str(", which was not started yet");
    }
    if !tally.is_exact() {
        text.push_str(&format!(
            "; estimated from {} of them, within ± in 95 of 100 cases (--exact reads all)",
            tally.read()
        ));
    }
    for pause in pauses {
        text.push_str(&format!("\npaused since {}: {}", rfc3339(pause.since_ms), pause.filter));
    }
    if rows.is_empty() {
        return text;
    }
    let name = match arguments.by {
        By::Shop => "SHOP",
        By::Topic => "TOPIC",
        By::Resource => "SHOP AND RESOURCE",
    };
    let more = if arguments.output.is_wide() { 2 } else { 0 };
    let now = now_ms();
    let waits = |at_ms: u64| age(float(now.saturating_sub(at_ms)) / 1000.0);
    let total: u64 = tally.total().max(1);
    let cells = rows.iter().map(|row| {
        let off_by = if row.off_by > 0 { format!("±{}", row.off_by) } else { String::new() };
        let share = format!("{:.1} %", float(row.waiting) * 100.0 / float(total));
        let paused = pauses.iter().any(|pause| is_of(pause, arguments.by, &row.name));
        let paused = if paused { "paused" } else { "" }.to_owned();
        let name = if row.name.is_empty() { "-".to_owned() } else { row.name.clone() };
        let oldest = waits(row.oldest_ms);
        let newest = waits(row.newest_ms);
        let times = [rfc3339(row.oldest_ms), rfc3339(row.newest_ms)];
        [name, row.waiting.to_string(), off_by, share, oldest, newest, paused]
            .into_iter()
            .chain(times.into_iter().take(more))
    });
    let header = [name, "WAITING", "±", "SHARE", "OLDEST", "NEWEST", "", "OLDEST AT", "NEWEST AT"];
    format!("{text}\n\n{}", table(&header[..7 + more], cells))
}

/// True if a pause covers exactly what a row counts.
fn is_of(pause: &Pause, by: By, name: &str) -> bool {
    let filter = &pause.filter;
    if filter.webhook_id.is_some() || filter.app.is_some() {
        return false;
    }
    match by {
        By::Shop => filter.only_shop() == Some(name),
        By::Topic => {
            let topic = filter.topic.as_deref();
            filter.shop.is_none()
                && filter.resource.is_none()
                && topic.is_some_and(|topic| {
                    spillway_webhook::shopify::is_topic_match(topic, name.as_bytes())
                })
        }
        By::Resource => {
            let (shop, resource) = shop_and_resource(name);
            filter.topic.is_none()
                && filter.resource.as_deref() == Some(resource)
                && filter.shop.as_deref().is_none_or(|own| own == shop)
        }
    }
}
