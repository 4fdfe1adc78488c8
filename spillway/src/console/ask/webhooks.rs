//! Webhooks that wait, everything that is known about one, and its body.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use spillway_console::ProblemDetails;
use spillway_console::model::webhook::{
    ContentHeader, WebhookContent, WebhookList, WebhookQuery, WebhookStory, WebhookSummary,
};
use spillway_queue::controls::Filter;
use spillway_queue::read::StreamReader;
use spillway_queue::{consumers as registered, status};
use spillway_webhook::WebhookId;
use spillway_webhook::pack::{Pack, View};

use super::{LIMIT, consumers, given, page_limit};
use crate::audited::{Actor, note_look};
use crate::console::links::apart;
use crate::console::state::Console;
use crate::failure::Failure;
use crate::filter::{FilterArguments, moment_ms};
use crate::out::now_ms;
use crate::place::CellArgs;
use crate::walk::cursor::{LookBudget, WaitCursor};
use crate::walk::page::{BYTES_MAX, PACKS_MAX, PageQuestion};
use crate::walk::{Look, Met, Waiting};

/// Time by which the clock of a receiver may be ahead of that of Redis. Packs that are older are not read.
const CLOCKS_APART_MS: u64 = 60_000;

/// Time for which the content of one webhook is searched beside the main stream.
const SEARCH: Duration = Duration::from_secs(2);

/// Times between which a webhook was received.
#[derive(Debug, Clone, Copy)]
struct ReceivedTimes {
    since_ms: u64,
    until_ms: u64,
}

/// A page of waiting webhooks.
pub(in crate::console) async fn list(
    console: &Console,
    query: &WebhookQuery,
) -> Result<WebhookList, ProblemDetails> {
    let (consumer, _) = consumers::named(console, query.consumer.as_deref()).await?;
    let times = ReceivedTimes::of(query)?;
    let from = match given(query.after.as_ref()) {
        Some(cursor) => cursor.parse::<WaitCursor>().map_err(ProblemDetails::bad_request)?,
        None => WaitCursor::since(times.since_ms.saturating_sub(CLOCKS_APART_MS)),
    };
    let question =
        PageQuestion { from, filter: filter_of(query)?, limit: page_limit(query.limit, LIMIT) };
    let place = console.place.clone();
    let room = console.links.gate.enter().await?;
    let page = apart(move || async move {
        // The read goes on if the caller leaves, so it keeps its room.
        let _room = room;
        let mut waiting = Waiting::for_consumer(&place, &consumer).await?;
        let of = move |met: &Met<'_>| times.hold(met.view.received_at_ms).then(|| summary(met));
        let page = waiting.page(&question, of).await?;
        Ok(WebhookList {
            consumer,
            total: waiting.count,
            webhooks: page.found,
            next: page.next.map(|next| next.to_string()),
        })
    });
    Ok(page.await?)
}

/// Everything that is known about one webhook, as far as the search for it has come. `after` is the cursor of a story that
/// was not complete.
pub(in crate::console) async fn story(
    console: &Console,
    id: &str,
    after: Option<&str>,
) -> Result<WebhookStory, ProblemDetails> {
    if id.trim().is_empty() {
        return Err(ProblemDetails::bad_request("give a Spillway-Id or Shopify's webhook id"));
    }
    console.links.stories.story(&console.place, id.trim(), after.is_some()).await
}

/// A webhook as it was received, as long as Redis has it: waiting, or settled by one consumer and not by another, or as a
/// dead letter. The audit has who reads it.
pub(in crate::console) async fn content(
    console: &Console,
    actor: &Actor,
    id: &str,
) -> Result<WebhookContent, ProblemDetails> {
    let wanted: WebhookId = id.parse().map_err(|_| {
        ProblemDetails::bad_request(format!(
            "{id:?} is no Spillway-Id such as a1b2c3d4-1767268800000-0000000000-00000: \
             /api/v1/webhooks/{{id}} finds it by Shopify's id"
        ))
    })?;
    let place = console.place.clone();
    let room = console.links.gate.enter().await?;
    let found = apart(move || async move {
        let _room = room;
        stored(place, wanted).await
    });
    let found = found.await?.ok_or_else(|| {
        ProblemDetails::not_found(format!(
            "{id} is not in Redis: it was settled by all consumers, or dropped; `spillway archive show` finds it in \
             an archive, and /dead its dead letter"
        ))
    })?;
    note_look(&console.place, actor, None, &found.spillway_id).await?;
    Ok(found)
}

/// Finds a webhook in the main stream, among the replays and in lanes, as far as the time is enough.
async fn stored(place: CellArgs, wanted: WebhookId) -> Result<Option<WebhookContent>, Failure> {
    let (redis, mut connection) = place.connect().await?;
    if registered::cell(&redis, &mut connection).await? != Some(wanted.cell) {
        return Ok(None);
    }
    let reader = StreamReader::new(redis.clone(), "");
    let bytes = reader.main_entry(&mut connection, wanted.entry).await?;
    let pack = bytes.and_then(|bytes| Pack::decode(&bytes).ok());
    let pack = pack.filter(|pack| wanted.index < pack.count());
    if let Some(pack) = pack.filter(|pack| !pack.view(wanted.index).is_erased()) {
        return Ok(Some(content_of(wanted, &pack.view(wanted.index))));
    }
    let mut budget = LookBudget::new(Instant::now(), SEARCH, PACKS_MAX, BYTES_MAX);
    let status = status::read(&redis, &mut connection).await?;
    let filter = Filter { webhook_id: Some(wanted.to_string()), ..Filter::default() };
    for consumer in &status.consumers {
        let mut waiting = Waiting::for_consumer(&place, &consumer.name).await?;
        let lanes = waiting.lanes(&filter).await?;
        let look = move |look: &Look<'_>| {
            let met = look.webhooks().find(|met| met.id == wanted);
            (met.map(|met| content_of(wanted, &met.view)), look.bytes())
        };
        let mut found = None;
        let take = |(content, bytes): (Option<WebhookContent>, usize)| {
            budget.spend(1, bytes);
            found = content;
            let is_over = found.is_some() || budget.is_spent(Instant::now());
            if is_over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        waiting.aside(&lanes, look, take).await?;
        if found.is_some() {
            return Ok(found);
        }
        if budget.is_spent(Instant::now()) {
            return Err(Failure::Failed(format!(
                "not found in time among what waits beside the main stream: `spillway queue show {wanted}` finds it \
                 on a machine"
            )));
        }
    }
    Ok(None)
}

impl ReceivedTimes {
    fn of(query: &WebhookQuery) -> Result<Self, ProblemDetails> {
        let now = now_ms();
        let moment = |name: &str, text: Option<&String>| {
            given(text).map(|text| moment_ms(name, text, now)).transpose()
        };
        let since_ms = moment("since", query.since.as_ref())?.unwrap_or(0);
        let until_ms = moment("until", query.until.as_ref())?.unwrap_or(u64::MAX);
        Ok(Self { since_ms, until_ms })
    }

    fn hold(self, at_ms: u64) -> bool {
        (self.since_ms..=self.until_ms).contains(&at_ms)
    }
}

fn filter_of(query: &WebhookQuery) -> Result<Filter, Failure> {
    let WebhookQuery { shop, topic, resource, app, .. } = query.clone();
    FilterArguments { shop, topic, app, resource, webhook_id: None }.checked()
}

fn summary(met: &Met<'_>) -> WebhookSummary {
    let place = match met.aside {
        None => "main",
        Some(aside) if aside.replay.is_some() => "replay",
        Some(_) => "lane",
    };
    WebhookSummary {
        spillway_id: met.id.to_string(),
        webhook_id: met.webhook_id(),
        shop: met.shop(),
        topic: met.topic(),
        resource: met.resource(),
        app: met.app(),
        received_at_ms: met.view.received_at_ms,
        bytes: u64::try_from(met.view.body.len()).unwrap_or(u64::MAX),
        place: place.to_owned(),
        attempts: met.aside.map(|aside| aside.attempts),
    }
}

/// A webhook as it was received.
pub(super) fn content_of(id: WebhookId, view: &View<'_>) -> WebhookContent {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let header =
        |(name, value): (&[u8], &[u8])| ContentHeader { name: text(name), value: text(value) };
    WebhookContent {
        spillway_id: id.to_string(),
        target: text(view.target),
        headers: view.headers().map(header).collect(),
        body: text(view.body),
        is_exact: std::str::from_utf8(view.body).is_ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_a_range_with_its_ends() {
        let query = |since: &str, until: &str| WebhookQuery {
            since: Some(since.to_owned()),
            until: Some(until.to_owned()),
            ..WebhookQuery::default()
        };
        let times = ReceivedTimes::of(&query("1970-01-01T00:00:01Z", "1970-01-01T00:00:02Z"));
        let times = times.expect("good times");
        assert_eq!([999, 1_000, 2_000, 2_001].map(|ms| times.hold(ms)), [false, true, true, false]);
        assert!(ReceivedTimes::of(&query("", "")).expect("none").hold(u64::MAX));
        assert!(ReceivedTimes::of(&query("soon", "")).is_err());
    }
}
