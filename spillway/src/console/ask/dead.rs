//! Dead letters: listed in pages, and one of them.

use std::time::Duration;

use spillway_console::ProblemDetails;
use spillway_console::model::dead::{DeadList, DeadQuery, DeadSummary};
use spillway_console::model::webhook::WebhookContent;
use spillway_queue::dead::DeadLetter;
use spillway_webhook::StreamId;
use spillway_webhook::pack::Pack;

use super::webhooks::content_of;
use super::{LIMIT, consumers, given, page_limit};
use crate::audited::{Actor, note_look};
use crate::console::links::apart;
use crate::console::state::Console;
use crate::dead::filter::{DeadFilter, DeadTimes, app_of};
use crate::dead::list::page;
use crate::dead::reason;
use crate::dead::show::find_within;
use crate::failure::Failure;
use crate::filter::FilterArguments;

/// Time for which one dead letter is searched. One that was listed before is found at once.
const SEARCH: Duration = Duration::from_secs(2);

/// A page of dead letters, oldest first.
pub(in crate::console) async fn list(
    console: &Console,
    query: &DeadQuery,
) -> Result<DeadList, ProblemDetails> {
    let (consumer, status) = consumers::named(console, query.consumer.as_deref()).await?;
    let after = match given(query.after.as_ref()) {
        Some(cursor) => cursor.parse::<StreamId>().map_err(|_| {
            ProblemDetails::bad_request(format!(
                "{cursor:?} is no cursor: take it from `next` of a page"
            ))
        })?,
        None => StreamId::ZERO,
    };
    let filter = filter_of(query)?;
    let limit = page_limit(query.limit, LIMIT);
    let place = console.place.clone();
    let name = consumer.clone();
    let room = console.links.gate.enter().await?;
    let found = apart(move || async move {
        // The read goes on if the caller leaves, so it keeps its room.
        let _room = room;
        let (letters, next) = page(&place, &name, &filter, after, limit).await?;
        let listed = letters.iter().map(|letter| (letter.id, summary(letter)));
        Ok((listed.collect::<Vec<_>>(), next))
    });
    let (listed, next) = found.await?;
    for (place, letter) in &listed {
        console.links.note_letter(&consumer, letter.spillway_id.clone(), *place);
    }
    Ok(DeadList {
        total: consumers::find(&status, &consumer).map_or(0, |known| known.dead.letters),
        consumer,
        letters: listed.into_iter().map(|(_, letter)| letter).collect(),
        next: next.map(|next| next.to_string()),
    })
}

/// One dead letter, by its Spillway-Id or Shopify's webhook id.
pub(in crate::console) async fn one(
    console: &Console,
    consumer: Option<&str>,
    id: &str,
) -> Result<DeadSummary, ProblemDetails> {
    find(console, consumer, id, |letter| Ok(summary(&letter))).await
}

/// A dead letter as it was received. The audit has who reads it.
pub(in crate::console) async fn content(
    console: &Console,
    actor: &Actor,
    consumer: Option<&str>,
    id: &str,
) -> Result<WebhookContent, ProblemDetails> {
    let (consumer, _) = consumers::named(console, consumer).await?;
    let found = find(console, Some(&consumer), id, |letter| {
        let corrupt =
            |what: &str| Failure::Failed(format!("what is stored of it can't be read: {what}"));
        let pack = Pack::decode(&letter.pack).map_err(|error| corrupt(&error.to_string()))?;
        if pack.count() == 0 {
            return Err(corrupt("it is empty"));
        }
        Ok(content_of(letter.webhook, &pack.view(0)))
    })
    .await?;
    note_look(&console.place, actor, Some(&consumer), &found.spillway_id).await?;
    Ok(found)
}

async fn find<T: Send + 'static>(
    console: &Console,
    consumer: Option<&str>,
    id: &str,
    of: impl FnOnce(DeadLetter) -> Result<T, Failure> + Send + 'static,
) -> Result<T, ProblemDetails> {
    let (consumer, _) = consumers::named(console, consumer).await?;
    let known = console.links.letter_place(&consumer, id);
    let place = console.place.clone();
    let wanted = id.to_owned();
    let name = consumer.clone();
    let room = console.links.gate.enter().await?;
    let found = apart(move || async move {
        let _room = room;
        let found = find_within(&place, &name, &wanted, known, SEARCH).await?;
        found.map(of).transpose()
    });
    let found = found.await?;
    found.ok_or_else(|| ProblemDetails::not_found(format!("{consumer} has no dead letter {id}")))
}

fn filter_of(query: &DeadQuery) -> Result<DeadFilter, Failure> {
    let DeadQuery { shop, topic, resource, app, since, until, .. } = query.clone();
    let which = FilterArguments { shop, topic, app, resource, webhook_id: None };
    DeadFilter::of(which, DeadTimes { since, until })
}

fn summary(letter: &DeadLetter) -> DeadSummary {
    DeadSummary {
        spillway_id: letter.webhook.to_string(),
        webhook_id: letter.webhook_id.clone(),
        shop: letter.shop.clone(),
        topic: letter.topic.clone(),
        resource: letter.resource.clone(),
        app: app_of(letter),
        reason: reason(letter),
        status: (letter.status > 0).then_some(letter.status),
        attempts: letter.attempts,
        dead_at_ms: letter.id.ms,
    }
}
