//! `spillway explain`: all that is known of one webhook, for each drain.
//!
//! What waits is looked for in the queue itself, what was given up among the dead letters, what is
//! settled in the history, which goes back as far as duplicates are remembered. Where nothing is found,
//! it is said what that can mean.

mod past;

use std::ops::ControlFlow;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use serde_json::{Value, json};
use spillway_queue::drains::KAFKA;
use spillway_queue::lane::LaneRow;
use spillway_queue::orders::{Filter, Pause};
use spillway_queue::status::{self, DrainStatus};
use spillway_webhook::WebhookId;
use spillway_webhook::freshness::rfc3339;
use spillway_webhook::shopify::resource_kind;

use crate::dead;
use crate::failure::Failure;
use crate::out::{age, line, now_ms, printable};
use crate::place::Place;
use crate::walk::{Look, Met, Waiting};
use past::History;

/// Of `explain`.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    place: Place,

    /// Shopify's webhook id (X-Shopify-Webhook-Id), or a Spillway-Id
    webhook_id: String,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Something known of it.
struct Fact {
    id: String,
    /// A closed code, for scripts.
    state: &'static str,
    at_ms: u64,
    /// A sentence.
    text: String,
    more: Value,
}

/// What one drain knows.
struct Known {
    drain: String,
    facts: Vec<Fact>,
    /// What the drain can't tell.
    gap: String,
}

/// Prints what is known. Exit code 0 if anything is, else 1.
pub async fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let Arguments { place, webhook_id, json } = arguments;
    let (redis, mut connection) = place.connect().await?;
    let status = status::read(&redis, &mut connection).await?;
    let mut all = Vec::new();
    for drain in &status.drains {
        all.push(of_drain(&place, drain, &webhook_id).await?);
    }
    let is_known = all.iter().any(|known| !known.facts.is_empty());
    if json {
        line(object(&webhook_id, is_known, &all))?;
    } else {
        line(text(&webhook_id, &all))?;
    }
    Ok(if is_known { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn of_drain(place: &Place, drain: &DrainStatus, wanted: &str) -> Result<Known, Failure> {
    let name = &drain.name;
    let mut waiting = Waiting::for_drain(place, name).await?;
    let redis = waiting.redis.clone();
    let history = History::read(&redis, waiting.connection(), name, wanted).await?;
    let mut facts: Vec<Fact> = history.facts(waiting.cell());
    facts.extend(dead_letters(place, name, wanted).await?);
    facts.extend(what_waits(&mut waiting, drain, wanted).await?);
    facts.sort_by_key(|fact| fact.at_ms);
    let mut gap = history.gap(wanted);
    if name == KAFKA {
        gap = of_kafka(&waiting, wanted);
    }
    Ok(Known { drain: name.clone(), facts, gap })
}

/// The producer keeps no history: what is behind its cursor is in the topic.
fn of_kafka(waiting: &Waiting, wanted: &str) -> String {
    match wanted.parse::<WebhookId>() {
        Ok(id) if id.entry <= waiting.cursor() => {
            "it is behind the cursor: in the topic (record header spillway-id), a dead letter, or \
             dropped by order"
                .to_owned()
        }
        _ => "this drain keeps no history; what is not listed here is in the topic (record header \
              x-shopify-webhook-id), or was never received"
            .to_owned(),
    }
}

async fn dead_letters(place: &Place, drain: &str, wanted: &str) -> Result<Vec<Fact>, Failure> {
    let letters = dead::find(place, drain, wanted).await?;
    let fact = |letter: spillway_queue::dead::DeadLetter| Fact {
        id: letter.webhook.to_string(),
        state: "dead",
        at_ms: letter.id.ms,
        text: format!(
            "is a dead letter: {}, last status {}, {} attempts; {} {} of {}. \
             `spillway dead show --drain {drain} {}`",
            letter.reason,
            letter.status,
            letter.attempts,
            letter.topic,
            letter.resource,
            letter.shop,
            letter.webhook
        ),
        more: json!({
            "reason": letter.reason, "status": letter.status, "attempts": letter.attempts,
            "shop": letter.shop, "topic": letter.topic, "resource": letter.resource,
        }),
    };
    Ok(letters.into_iter().map(fact).collect())
}

async fn what_waits(
    waiting: &mut Waiting,
    drain: &DrainStatus,
    wanted: &str,
) -> Result<Vec<Fact>, Failure> {
    let filter = Filter { webhook_id: Some(wanted.to_owned()), ..Filter::default() };
    let (pauses, lanes) = (drain.pauses.clone(), Arc::new(waiting.lanes(&filter).await?));
    let known = lanes.clone();
    let look = move |look: &Look<'_>| {
        let meant = look.webhooks().filter(|met| met.is_meant(&filter));
        meant.map(|met| waits(&met, &pauses, &known)).collect::<Vec<Fact>>()
    };
    let mut facts = Vec::new();
    let mut take = |found: Vec<Fact>| {
        facts.extend(found);
        ControlFlow::Continue(())
    };
    waiting.aside(&lanes, look.clone(), &mut take).await?;
    // A Spillway-Id tells the pack.
    match wanted.parse::<WebhookId>() {
        Ok(id) => waiting.pack(id.entry, look, &mut take).await?,
        Err(_) => waiting.main(look, &mut take).await?,
    }
    Ok(facts)
}

/// The lane of a webhook, and why it waits there.
fn lane(met: &Met<'_>, lanes: &[LaneRow]) -> String {
    let (shop, kind) = (met.shop(), resource_kind(&met.topic()));
    let own =
        lanes.iter().find(|row| row.shop == shop && (row.kind == kind || row.kind.is_empty()));
    let Some(row) = own else { return "in a lane".to_owned() };
    let name = if row.kind.is_empty() { shop } else { format!("{shop} {kind}") };
    let failing = age(row.failing.total().as_secs_f64());
    let state = match row.tripped {
        true => format!("its circuit breaker is open, nothing of it succeeded for {failing}"),
        false => "its circuit breaker is closed".to_owned(),
    };
    format!("in the lane {name} with {} others: {state}", row.waiting.saturating_sub(1))
}

fn waits(met: &Met<'_>, pauses: &[Pause], lanes: &[LaneRow]) -> Fact {
    let received_ms = met.view.received_at_ms;
    let waited = age(now_ms().saturating_sub(received_ms) as f64 / 1000.0);
    let (shop, topic, resource) = (met.shop(), met.topic(), met.resource());
    let place = match met.aside {
        Some(aside) if aside.replay.is_some() => "to be replayed".to_owned(),
        Some(aside) => format!("{}; {} attempts so far", lane(met, lanes), aside.attempts),
        None => {
            "in the main stream; its attempts are not shown until it moves into a lane".to_owned()
        }
    };
    let paused = pauses.iter().filter(|pause| met.is_meant(&pause.filter));
    let paused: Vec<_> = paused.map(|pause| pause.filter.to_string()).collect();
    let held = match paused.is_empty() {
        true => String::new(),
        false => format!("; paused: {}", paused.join(" and ")),
    };
    Fact {
        id: met.id.to_string(),
        state: "waiting",
        at_ms: received_ms,
        text: format!("waits for {waited}, {place}{held}; {topic} {resource} of {shop}"),
        more: json!({
            "received_at": rfc3339(received_ms), "shop": shop, "topic": topic,
            "resource": resource,
            "in_lane": met.aside.is_some_and(|aside| aside.replay.is_none()),
            "attempts": met.aside.map(|aside| aside.attempts),
            "paused": !paused.is_empty(),
        }),
    }
}

fn text(wanted: &str, all: &[Known]) -> String {
    let mut text = printable(wanted.as_bytes());
    if all.is_empty() {
        text.push_str("\nno drain is registered, so nothing waits and nothing was delivered");
    }
    for Known { drain, facts, gap } in all {
        text.push_str(&format!("\n\n{drain}:"));
        for Fact { id, at_ms, text: fact, .. } in facts {
            let fact = printable(fact.as_bytes());
            text.push_str(&format!("\n  {}  {id}\n    {fact}", rfc3339(*at_ms)));
        }
        if facts.is_empty() || drain == KAFKA {
            text.push_str(&format!(
                "\n  {}{gap}",
                if facts.is_empty() { "not known: " } else { "" }
            ));
        }
    }
    text
}

fn object(wanted: &str, is_known: bool, all: &[Known]) -> Value {
    let fact = |fact: &Fact| {
        let mut object = fact.more.clone();
        object["id"] = fact.id.clone().into();
        object["state"] = fact.state.into();
        object["at"] = rfc3339(fact.at_ms).into();
        object["text"] = fact.text.clone().into();
        object
    };
    let known = |known: &Known| {
        let facts: Vec<Value> = known.facts.iter().map(fact).collect();
        json!({ "drain": known.drain, "facts": facts, "not_known": known.gap })
    };
    let drains: Vec<Value> = all.iter().map(known).collect();
    json!({ "webhook_id": wanted, "known": is_known, "drains": drains })
}
