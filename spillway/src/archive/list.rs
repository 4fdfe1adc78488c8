//! `spillway archive list`: prints a table up to its limit, or one JSON object per line.

use clap::Args;
use serde_json::json;
use spillway_archive::{ListedObject, ObjectTail};
use spillway_webhook::freshness::rfc3339;
use spillway_webhook::shopify::is_topic_match;

use super::range::RangeArguments;
use super::{OpenArchive, UnreadObjects};
use crate::failure::Failure;
use crate::filter;
use crate::format::OutputArgs;
use crate::out::{Progress, count, line, size, table};

const HEADER: [&str; 5] = ["OBJECT", "FROM", "TO", "WEBHOOKS", "BYTES"];

#[derive(Debug, Args)]
pub(super) struct ListArguments {
    #[command(flatten)]
    range: RangeArguments,

    /// Only objects with webhooks of this shop
    #[arg(short, long, value_parser = filter::shop)]
    shop: Option<String>,

    /// Only objects with webhooks of this topic; orders/* matches every topic that begins with orders/
    #[arg(short, long, value_parser = filter::topic)]
    topic: Option<String>,

    #[command(flatten)]
    output: OutputArgs,

    /// Maximum number of lines in the table; JSON has no limit
    #[arg(short = 'n', long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
}

/// Shop and topic that an object must hold.
struct LabelFilter {
    shop: Option<String>,
    topic: Option<String>,
}

/// Lists objects, oldest first in each cell. Without a filter, only names are read.
pub(super) async fn run(archive: &OpenArchive, arguments: ListArguments) -> Result<(), Failure> {
    let ListArguments { range, shop, topic, output, limit } = arguments;
    let range = range.checked()?;
    let filter = LabelFilter { shop, topic };
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let mut rows = Vec::new();
    let mut found = 0usize;
    let mut unread = UnreadObjects::default();
    let mut progress = Progress::new();
    for day in range.days(&archive.store).await? {
        for object in range.objects(&archive.store, &day).await? {
            progress.tell(|| format!("reading {}", day.day));
            if !filter.matches(archive, &object, &mut unread).await? {
                continue;
            }
            found += 1;
            if output.is_json() {
                line(json_of(&object))?;
            } else if rows.len() < limit {
                rows.push(cells(&object));
            }
        }
    }
    if found == 0 {
        unread.ensure_none("no object matches")?;
    }
    if output.is_json() {
        return Ok(());
    }
    if found == 0 {
        return Ok(line("no object matches")?);
    }
    let more = found - rows.len();
    line(table(&HEADER, rows))?;
    if more > 0 {
        line(format_args!(
            "and {} more: use --limit, -o json or a filter",
            count(more as u64, "object")
        ))?;
    }
    Ok(())
}

impl LabelFilter {
    async fn matches(
        &self,
        archive: &OpenArchive,
        object: &ListedObject,
        unread: &mut UnreadObjects,
    ) -> Result<bool, Failure> {
        if self.shop.is_none() && self.topic.is_none() {
            return Ok(true);
        }
        let tail = unread.skip(archive.store.tail(object, &archive.keys).await)?;
        Ok(tail.is_some_and(|tail| self.may_match(&tail)))
    }

    fn may_match(&self, tail: &ObjectTail) -> bool {
        let shop = self.shop.as_deref();
        let topic = self.topic.as_deref();
        shop.is_none_or(|shop| tail.index.shops.may_hold(|label| label == shop.as_bytes()))
            && topic.is_none_or(|topic| {
                tail.index.topics.may_hold(|label| is_topic_match(topic, label))
            })
    }
}

fn json_of(object: &ListedObject) -> serde_json::Value {
    let ListedObject { name, bytes, .. } = object;
    json!({
        "object": name.to_string(),
        "cell": format!("{:08x}", name.cell),
        "from": rfc3339(name.first.ms),
        "to": rfc3339(name.last.ms),
        "first_entry": name.first.to_string(),
        "last_entry": name.last.to_string(),
        "webhooks": name.webhooks,
        "bytes": bytes,
    })
}

fn cells(object: &ListedObject) -> [String; HEADER.len()] {
    let ListedObject { name, bytes, .. } = object;
    [
        name.to_string(),
        rfc3339(name.first.ms),
        rfc3339(name.last.ms),
        name.webhooks.to_string(),
        size(*bytes),
    ]
}
