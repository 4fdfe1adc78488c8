//! `spillway archive show`: the index of one object, or one webhook exactly as it was received.

use std::io::Write;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use serde_json::{Value, json};
use spillway_archive::bloom::webhook_id_hash;
use spillway_archive::index::LabelCounts;
use spillway_archive::{ArchiveReader, ListedObject, ObjectName, ObjectTail, StoreError};
use spillway_webhook::WebhookId;
use spillway_webhook::freshness::rfc3339;
use spillway_webhook::pack::{Pack, View};
use spillway_webhook::shopify::Headers;

use super::range::{ObjectRange, RangeArguments};
use super::{OpenArchive, UnreadObjects};
use crate::failure::Failure;
use crate::format::OutputArgs;
use crate::out::{Progress, line, size, table};
use crate::walk::Met;
use crate::walk::cursor::WaitCursor;
use crate::webhook_text::webhook_text;

/// Shops and topics of an object that are shown, those with the most webhooks first.
const LABELS_SHOWN: usize = 20;

#[derive(Debug, Args)]
pub(super) struct ShowArguments {
    #[command(flatten)]
    which: ShownThing,

    #[command(flatten)]
    range: RangeArguments,

    /// Print only the body of the webhook, byte for byte
    #[arg(long, requires = "webhook_id")]
    body: bool,

    #[command(flatten)]
    output: OutputArgs,
}

/// An object or a webhook.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct ShownThing {
    /// Name of an object, as `spillway archive list` prints it
    object: Option<String>,

    /// Shopify's webhook id, or the Spillway-Id of a webhook. Of several webhooks with one id, the first is shown
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    webhook_id: Option<String>,
}

/// Shows an object or a webhook.
pub(super) async fn run(archive: &OpenArchive, arguments: ShowArguments) -> Result<(), Failure> {
    let ShowArguments { which, range, body, output } = arguments;
    if let Some(id) = which.webhook_id {
        return show_webhook(archive, &range.checked()?, &id, body, output).await;
    }
    let name = which.object.unwrap_or_default();
    let name = name.parse::<ObjectName>().map_err(|error| Failure::Usage(format!("{error}")))?;
    let listed = archive.store.objects(name.cell, &name.day()).await?;
    let object = listed.into_iter().find(|object| object.name == name);
    let absent = || Failure::Failed(format!("the archive has no object {name}"));
    let object = object.ok_or_else(absent)?;
    let tail = match archive.store.tail(&object, &archive.keys).await {
        Err(StoreError::Missing(_)) => return Err(absent()),
        found => found?,
    };
    if output.is_json() {
        return Ok(line(json_of(&object, &tail))?);
    }
    Ok(line(text_of(&object, &tail))?)
}

fn json_of(object: &ListedObject, tail: &ObjectTail) -> Value {
    let index = &tail.index;
    let labels = |labels: &LabelCounts| {
        let counts = labels.iter().map(|(label, webhooks)| (text(label), json!(webhooks)));
        counts.collect::<serde_json::Map<_, _>>()
    };
    json!({
        "object": object.name.to_string(),
        "after": tail.header.after.to_string(),
        "key": tail.header.key.as_ref().map(|key| &key.id),
        "bytes": object.bytes,
        "webhooks": index.webhooks(),
        "packs": index.packs.len(),
        "corrupt_packs": index.corrupt_packs(),
        "received_from": index.received_ms.map(|(first, _)| rfc3339(first)),
        "received_to": index.received_ms.map(|(_, last)| rfc3339(last)),
        "shops": labels(&index.shops),
        "shops_incomplete": index.shops.is_incomplete(),
        "topics": labels(&index.topics),
        "topics_incomplete": index.topics.is_incomplete(),
    })
}

fn text_of(object: &ListedObject, tail: &ObjectTail) -> String {
    let index = &tail.index;
    let none = || "-".to_owned();
    let key = tail.header.key.as_ref().map(|key| key.id.clone());
    let facts = [
        ("object", object.name.to_string()),
        ("begins after", tail.header.after.to_string()),
        ("key", key.unwrap_or_else(none)),
        ("size", size(object.bytes)),
        ("webhooks", index.webhooks().to_string()),
        ("packs", index.packs.len().to_string()),
        ("corrupt packs", index.corrupt_packs().to_string()),
        ("received from", index.received_ms.map_or_else(none, |(first, _)| rfc3339(first))),
        ("received to", index.received_ms.map_or_else(none, |(_, last)| rfc3339(last))),
    ];
    let facts = table(&["", ""], facts.map(|(name, fact)| [name.to_owned(), fact]));
    let mut shown = facts.trim_start().to_owned();
    for (noun, labels) in [("SHOP", &index.shops), ("TOPIC", &index.topics)] {
        let mut rows: Vec<_> = labels.iter().collect();
        rows.sort_by_key(|(_, webhooks)| std::cmp::Reverse(*webhooks));
        let cells = rows.iter().take(LABELS_SHOWN);
        let cells = cells.map(|(label, webhooks)| [text(label), webhooks.to_string()]);
        shown.push_str(&format!("\n\n{}", table(&[noun, "WEBHOOKS"], cells)));
        if rows.len() > LABELS_SHOWN || labels.is_incomplete() {
            shown.push_str("\nand more: use -o json");
        }
    }
    shown
}

async fn show_webhook(
    archive: &OpenArchive,
    range: &ObjectRange,
    id: &str,
    body_only: bool,
    output: OutputArgs,
) -> Result<(), Failure> {
    let spillway_id = id.parse::<WebhookId>().ok();
    // A Spillway-Id names the entry, and with it the object.
    let range = spillway_id.map_or(*range, |id| ObjectRange::at(id.cell, id.entry.ms));
    let mut unread = UnreadObjects::default();
    let mut progress = Progress::new();
    for day in range.days(&archive.store).await? {
        for object in range.objects(&archive.store, &day).await? {
            progress.tell(|| format!("reading {}", day.day));
            let tail = unread.skip(archive.store.tail(&object, &archive.keys).await)?;
            let Some(tail) = tail else { continue };
            let may_hold = tail.index.webhook_ids.may_hold(webhook_id_hash(id.as_bytes()));
            if spillway_id.is_none() && !may_hold {
                continue;
            }
            let found = find(archive, &object, &tail, id, &mut unread).await?;
            let Some((pack, found)) = found else { continue };
            if was_erased(archive, &object.name, &pack.view(found.index), found).await? {
                return Err(Failure::Failed(format!(
                    "the webhook {id} was erased (`spillway forget`): the archive holds its place only"
                )));
            }
            let cursor = WaitCursor::Main(found.entry, found.index);
            let met = Met { id: found, view: pack.view(found.index), aside: None, cursor };
            return print_webhook(&met, &object.name, body_only, output);
        }
    }
    let absent = format!("the archive holds no webhook {id} in this range");
    unread.ensure_none(&absent)?;
    Err(Failure::Failed(absent))
}

/// True if a webhook is erased, also if another object still has it: a purge was cut off, or only the other one was
/// purged.
async fn was_erased(
    archive: &OpenArchive,
    name: &ObjectName,
    view: &View<'_>,
    id: WebhookId,
) -> Result<bool, StoreError> {
    if view.is_erased() {
        return Ok(true);
    }
    let mut objects = archive.store.objects(name.cell, &name.day()).await?;
    objects.retain(|object| object.name.first <= id.entry && object.name.last >= id.entry);
    if objects.len() < 2 {
        return Ok(false);
    }
    let store = Arc::new(archive.store.clone());
    let after = id.entry.previous();
    let mut reader = ArchiveReader::new(store, archive.keys.clone(), objects, after, id.entry);
    loop {
        let found = match reader.next().await {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(true),
            // The one beside it cannot be read, or is gone.
            Err(StoreError::Bad(..) | StoreError::NoKey(..) | StoreError::Missing(_)) => {
                return Ok(false);
            }
            Err(error) => return Err(error),
        };
        let Ok(pack) = Pack::decode(&found.bytes) else { continue };
        let is_same = |other: View<'_>| {
            other.target == view.target
                && other.body == view.body
                && other.headers().eq(view.headers())
        };
        if id.index < pack.count() && is_same(pack.view(id.index)) {
            return Ok(false);
        }
    }
}

/// Returns the first webhook of an object with this Shopify webhook id or Spillway-Id, and its pack.
async fn find(
    archive: &OpenArchive,
    object: &ListedObject,
    tail: &ObjectTail,
    id: &str,
    unread: &mut UnreadObjects,
) -> Result<Option<(Pack, WebhookId)>, Failure> {
    let spillway_id = id.parse::<WebhookId>().ok();
    for (number, row) in tail.index.packs.iter().enumerate() {
        if row.is_corrupt || spillway_id.is_some_and(|id| id.entry != row.entry) {
            continue;
        }
        let bytes = unread.skip(archive.store.pack(&object.name, tail, number).await)?;
        let Some(bytes) = bytes else { continue };
        let pack = match Pack::decode(&bytes) {
            Ok(pack) => pack,
            Err(error) => {
                unread.tell(&format!("pack {} of {}: {error}", row.entry, object.name));
                continue;
            }
        };
        let is_meant = |index: &u32| match spillway_id {
            Some(id) => id.index == *index,
            None => pack.view(*index).shopify("webhook-id") == Some(id.as_bytes()),
        };
        if let Some(index) = (0..pack.count()).find(is_meant) {
            let found = WebhookId { cell: object.name.cell, entry: row.entry, index };
            return Ok(Some((pack, found)));
        }
    }
    Ok(None)
}

fn print_webhook(
    met: &Met<'_>,
    object: &ObjectName,
    body_only: bool,
    output: OutputArgs,
) -> Result<(), Failure> {
    if body_only {
        let mut output = std::io::stdout();
        output.write_all(met.view.body)?;
        return Ok(output.flush()?);
    }
    if output.is_json() {
        return Ok(line(webhook_json(met))?);
    }
    Ok(line(webhook_text(met, ("object", object.to_string())))?)
}

/// A webhook as JSON. A body that is not UTF-8 is in base64. `ops/archive/read.py` prints the same fields.
fn webhook_json(met: &Met<'_>) -> Value {
    let headers = met.view.headers().map(|(name, value)| json!([text(name), text(value)]));
    let (key, body) = match std::str::from_utf8(met.view.body) {
        Ok(body) => ("body", body.to_owned()),
        Err(_) => ("body_base64", STANDARD.encode(met.view.body)),
    };
    let mut webhook = json!({
        "spillway_id": met.id.to_string(),
        "received_at": rfc3339(met.view.received_at_ms),
        "shop": met.shop(),
        "topic": met.topic(),
        "resource": met.resource(),
        "webhook_id": met.webhook_id(),
        "target": text(met.view.target),
        "headers": headers.collect::<Vec<_>>(),
    });
    webhook[key] = body.into();
    webhook
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use spillway_archive::ObjectWriter;
    use spillway_archive::keys::KeyRing;
    use spillway_archive::store::{ArchiveStore, ArchiveUrl};
    use spillway_webhook::pack::{Packer, Records};
    use spillway_webhook::{StreamId, Webhook};

    use super::*;

    #[tokio::test]
    async fn a_webhook_that_is_erased_in_another_object_is_not_shown() {
        let directory = tempfile::tempdir().expect("a directory");
        let url = format!("file://{}", directory.path().display());
        let url = ArchiveUrl::parse(&url).expect("a URL");
        let store = ArchiveStore::open(&url).expect("an archive");
        let archive = OpenArchive { store, keys: Arc::new(KeyRing::default()) };
        let mut records = Records::default();
        for body in ["a", "bb"] {
            let target = http::uri::PathAndQuery::from_static("/webhooks");
            let headers = http::HeaderMap::new();
            records.push(&Webhook { received_at_ms: 7, target, headers, body: body.into() });
        }
        let whole = Bytes::copy_from_slice(Packer::new().pack(&records));
        let pack = Pack::decode(&whole).expect("a pack");
        let erased = Bytes::copy_from_slice(Packer::new().erase(&pack, |index| index == 1));
        let entry = StreamId { ms: 1_767_268_800_000, seq: 0 };
        let mut names = Vec::new();
        for bytes in [whole, erased] {
            let mut writer =
                ObjectWriter::new(7, StreamId::ZERO, &archive.keys).expect("randomness");
            writer.add(entry, bytes);
            let sealed = writer.finish().expect("a pack");
            archive.store.put(&sealed, true).await.expect("stored");
            names.push(sealed.name);
        }
        for (index, expected) in [(0, false), (1, true)] {
            let id = WebhookId { cell: 7, entry, index };
            let found = was_erased(&archive, &names[0], &pack.view(index), id).await;
            assert_eq!(found.expect("it is read"), expected, "{index}");
        }
    }
}
