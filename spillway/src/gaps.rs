//! `spillway gaps`: shops and topics of which webhooks may be missing, for the app's own reconciliation.
//!
//! Receivers note what they refused, what a Redis may have lost, and the times without a receiver. Silences that last are found
//! here, from the rhythm of each shop and topic. [`lines`] joins both, and knows no Redis.

mod csv;
mod lines;

use std::env;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use spillway_console::model::gaps::{GapLine, GapList, GapQuery};
use spillway_process::settings::parse_duration;
use spillway_queue::accepting;
use spillway_queue::gaps::{NotedGap, page};
use spillway_queue::rhythm::scan;
use spillway_queue::{Connection, Redis};
use spillway_webhook::StreamId;
use spillway_webhook::freshness::rfc3339;

use crate::failure::Failure;
use crate::filter::moment_ms;
use crate::format::OutputArgs;
use crate::out::{age, line, now_ms, table};
use crate::place::CellArgs;

/// Notes that are read at a time.
const NOTES_READ: usize = 1000;
/// Age of gaps that are listed unless another is given.
pub(crate) const SINCE: &str = "24h";
/// Default of `SILENT_AFTER`, which the receiver has, too.
const SILENT_AFTER: &str = "1h";
/// Gaps of a page unless another number is given, and most of them.
const PAGE: u32 = 50;
const PAGE_MAX: u32 = 200;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    place: CellArgs,

    /// List gaps that end at or after this RFC 3339 time, or this long ago, such as 2h
    #[arg(long, default_value = SINCE)]
    since: String,

    /// List gaps of this shop domain, and those that may concern any shop
    #[arg(long)]
    shop: Option<String>,

    /// Least silence of a shop and topic that counts, where it is also more than twice the longest one of this week and
    /// the last; the receiver has a setting of the same name
    #[arg(long, env = "SILENT_AFTER", value_name = "DURATION", default_value = SILENT_AFTER, value_parser = parse_duration)]
    silent_after: Duration,

    /// Print comma-separated values: shop, topic, from, to, cause; an empty shop or topic stands for any
    #[arg(long)]
    csv: bool,

    #[command(flatten)]
    output: OutputArgs,
}

/// Gaps that are asked for, after the values were checked.
struct GapSearch {
    since_ms: u64,
    silent_after_ms: u64,
    now_ms: u64,
}

impl GapSearch {
    fn new(since: &str, silent_after: Duration) -> Result<Self, Failure> {
        let now_ms = now_ms();
        Ok(Self {
            since_ms: moment_ms("since", since, now_ms)?,
            silent_after_ms: u64::try_from(silent_after.as_millis()).unwrap_or(u64::MAX),
            now_ms,
        })
    }

    /// The search of the console, which has `SILENT_AFTER` in its environment.
    fn of_console(since: &str) -> Result<Self, Failure> {
        let silent_after = env::var("SILENT_AFTER").unwrap_or_default();
        let silent_after = Some(silent_after.as_str()).filter(|text| !text.is_empty());
        let silent_after = parse_duration(silent_after.unwrap_or(SILENT_AFTER))
            .map_err(|problem| Failure::Usage(format!("SILENT_AFTER: {problem}")))?;
        Self::new(since, silent_after)
    }
}

/// Prints the gaps, the newest first.
pub(crate) async fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let Arguments { place, since, shop, silent_after, csv, output } = arguments;
    let since = if since.is_empty() { SINCE.to_owned() } else { since };
    let mut gaps = find_all(&place, &GapSearch::new(&since, silent_after)?).await?;
    gaps.retain(|gap| lines::is_of(gap, given(shop.as_deref())));
    if csv {
        line(csv::text(&gaps).trim_end())?;
    } else if output.is_json() {
        for gap in &gaps {
            line(object(gap))?;
        }
    } else {
        line(text(&gaps, &since))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Finds the gaps of all shops for the console, the newest first.
pub(crate) async fn find(cell: &CellArgs, since: &str) -> Result<Vec<GapLine>, Failure> {
    find_all(cell, &GapSearch::of_console(since)?).await
}

/// The page of a query, from the gaps of all shops.
pub(crate) fn page_of(gaps: &[GapLine], query: &GapQuery) -> Result<GapList, Failure> {
    let limit = query.limit.unwrap_or(PAGE).clamp(1, PAGE_MAX);
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let shop = given(query.shop.as_deref());
    let gaps = gaps.iter().filter(|gap| lines::is_of(gap, shop));
    lines::page(gaps, query.after.as_deref(), limit)
}

/// The gaps of a shop as comma-separated values, from the gaps of all shops.
pub(crate) fn csv_of(gaps: &[GapLine], shop: Option<&str>) -> String {
    csv::text(gaps.iter().filter(|gap| lines::is_of(gap, shop)))
}

/// A value of a query. An empty one, as that of an empty field of a form, is none.
fn given(text: Option<&str>) -> Option<&str> {
    text.map(str::trim).filter(|text| !text.is_empty())
}

/// Reads the notes and the rhythms. Both are bounded, whatever waits in the queue.
async fn find_all(cell: &CellArgs, search: &GapSearch) -> Result<Vec<GapLine>, Failure> {
    let (redis, mut connection) = cell.connect().await?;
    let notes = notes(&redis, &mut connection, search).await?;
    let closed = accepting::read(&redis, &mut connection).await?;
    let mut silences = Vec::new();
    let mut cursor = 0;
    loop {
        let (next, pairs) = scan(&redis, &mut connection, cursor).await?;
        let silent = pairs.into_iter().filter(|(_, _, rhythm)| {
            let closed_ms = closed.between(rhythm.last_ms, search.now_ms);
            rhythm.is_silent(search.now_ms.saturating_sub(closed_ms), search.silent_after_ms)
        });
        silences.extend(
            silent.map(|(shop, topic, rhythm)| lines::silence(shop, topic, rhythm, search.now_ms)),
        );
        if next == 0 {
            break;
        }
        cursor = next;
    }
    Ok(lines::of(notes, silences))
}

/// Notes of gaps that end in the time that is asked for. A note is written after its gap has ended.
async fn notes(
    redis: &Redis,
    connection: &mut Connection,
    search: &GapSearch,
) -> Result<Vec<NotedGap>, Failure> {
    let mut after = StreamId { ms: search.since_ms, seq: 0 }.previous();
    let mut notes = Vec::new();
    loop {
        let found = page(redis, connection, after, NOTES_READ).await?;
        let Some((last, _)) = found.last() else { break };
        after = *last;
        let recent = found.into_iter().map(|(_, note)| note);
        notes.extend(recent.filter(|note| note.to_ms >= search.since_ms));
    }
    Ok(notes)
}

fn object(gap: &GapLine) -> String {
    let object = json!({
        "shop": gap.shop, "topic": gap.topic, "from": rfc3339(gap.from_ms),
        "to": rfc3339(gap.to_ms), "cause": lines::cause(gap.cause),
    });
    object.to_string()
}

/// The gaps as a table, or a sentence if there is none.
fn text(gaps: &[GapLine], since: &str) -> String {
    if gaps.is_empty() {
        return format!("no gap since {since}");
    }
    let any = |name: &str| if name.is_empty() { "any".to_owned() } else { name.to_owned() };
    let rows = gaps.iter().map(|gap| {
        let lasted = Duration::from_millis(gap.to_ms.saturating_sub(gap.from_ms));
        [
            any(&gap.shop),
            any(&gap.topic),
            rfc3339(gap.from_ms),
            rfc3339(gap.to_ms),
            age(lasted.as_secs_f64()),
            lines::cause(gap.cause).to_owned(),
        ]
    });
    table(&["SHOP", "TOPIC", "FROM", "TO", "LASTED", "CAUSE"], rows)
}

#[cfg(test)]
mod tests {
    use spillway_console::model::gaps::GapCause;

    use super::*;

    #[test]
    fn a_gap_of_any_shop_is_named_so() {
        let (shop, topic) = Default::default();
        let gap = GapLine { shop, topic, from_ms: 0, to_ms: 60_000, cause: GapCause::Lost };
        let told = text(&[gap], SINCE);
        assert!(told.contains("any") && told.contains("1m") && told.contains("lost"), "{told}");
        assert_eq!(text(&[], SINCE), "no gap since 24h");
    }

    #[test]
    fn an_empty_field_of_a_form_is_no_filter() {
        let [shop, topic] = ["a.myshopify.com", "orders/create"].map(str::to_owned);
        let gap = GapLine { shop, topic, from_ms: 0, to_ms: 60_000, cause: GapCause::Refused };
        let query = |shop: &str| GapQuery { shop: Some(shop.to_owned()), ..GapQuery::default() };
        let found = |shop| page_of(std::slice::from_ref(&gap), &query(shop)).expect("a page").gaps;
        assert_eq!((found("").len(), found("b.myshopify.com").len()), (1, 0));
        let search = GapSearch::of_console(SINCE).expect("defaults");
        assert_eq!(search.now_ms - search.since_ms, 24 * 3_600_000);
        assert!(GapSearch::of_console("yesterday").is_err());
    }
}
