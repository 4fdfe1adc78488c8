//! `spillway explain`: everything that is known about one webhook, for each consumer.
//!
//! Waiting webhooks are searched in the queue itself, given-up ones among the dead letters, and
//! settled ones in the history. The history covers the deduplication window. If nothing is found,
//! the output explains what that can mean.

mod past;

use std::ops::ControlFlow;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use serde_json::{Value, json};
use spillway_queue::consumers::{ConsumerKind, HTTP};
use spillway_queue::controls::{Filter, Pause};
use spillway_queue::dead::DeadLetter;
use spillway_queue::lane::LaneRow;
use spillway_queue::status::{self, ConsumerStatus};
use spillway_webhook::WebhookId;
use spillway_webhook::freshness::rfc3339;
use spillway_webhook::shopify::resource_kind;

use crate::dead;
use crate::failure::Failure;
use crate::format::OutputArgs;
use crate::out::{age, float, line, now_ms, printable};
use crate::place::CellArgs;
use crate::walk::{Look, Met, Waiting};
use past::History;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    place: CellArgs,

    /// Shopify's webhook id (X-Shopify-Webhook-Id) or a Spillway-Id
    webhook_id: String,

    #[command(flatten)]
    output: OutputArgs,
}

/// One fact about the webhook.
pub(crate) struct Fact {
    /// Id of the webhook.
    pub spillway_id: String,
    /// One of a fixed set of codes, for scripts.
    pub state: &'static str,
    /// Time of the fact.
    pub at_ms: u64,
    /// The fact as a sentence.
    pub text: String,
    more: Value,
}

/// Facts that one consumer has about the webhook.
pub(crate) struct ConsumerFacts {
    /// Name of the consumer.
    pub consumer: String,
    /// False before the first consumer of the cell is registered.
    is_registered: bool,
    keeps_history: bool,
    /// Facts, in the order of time.
    pub facts: Vec<Fact>,
    /// Sentence that says what the consumer cannot know.
    pub gap: String,
}

/// Prints the known facts. The exit code is 0 if there is one, else 1.
pub(crate) async fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let Arguments { place, webhook_id, output } = arguments;
    let mut all = Vec::new();
    for consumer in &consumers(&place).await? {
        all.push(of_consumer(&place, consumer, &webhook_id).await?);
    }
    let is_known = all.iter().any(|known| !known.facts.is_empty());
    if output.is_json() {
        line(object(&webhook_id, is_known, &all))?;
    } else {
        line(text(&webhook_id, &all))?;
    }
    Ok(if is_known { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Consumers that may know a webhook.
pub(crate) async fn consumers(place: &CellArgs) -> Result<Vec<ConsumerStatus>, Failure> {
    let (redis, mut connection) = place.connect().await?;
    let mut consumers = status::read(&redis, &mut connection).await?.consumers;
    if consumers.is_empty() {
        // Everything waits for the downstreamer until it is started.
        let name = HTTP.to_owned();
        consumers.push(ConsumerStatus { name, ..ConsumerStatus::default() });
    }
    Ok(consumers)
}

/// Facts that one consumer has about a webhook.
pub(crate) async fn of_consumer(
    place: &CellArgs,
    consumer: &ConsumerStatus,
    wanted: &str,
) -> Result<ConsumerFacts, Failure> {
    let found = look(place, consumer, wanted).await?;
    if !found.facts.is_empty() {
        return Ok(found);
    }
    // It may have moved meanwhile: into a lane, or into the history.
    look(place, consumer, wanted).await
}

async fn look(
    place: &CellArgs,
    consumer: &ConsumerStatus,
    wanted: &str,
) -> Result<ConsumerFacts, Failure> {
    let name = &consumer.name;
    let mut waiting = Waiting::for_consumer(place, name).await?;
    let cell = waiting.cell();
    if wanted.parse().is_ok_and(|id: WebhookId| id.cell != cell) {
        return Err(Failure::Failed(format!(
            "{wanted} is of another cell; the Spillway-Ids of this one begin with {cell:08x}"
        )));
    }
    let redis = waiting.redis.clone();
    let history = History::read(&redis, waiting.connection(), name, wanted).await?;
    let mut facts: Vec<Fact> = history.facts(cell);
    facts.extend(dead_letters(place, name, wanted).await?);
    facts.extend(what_waits(&mut waiting, consumer, wanted).await?);
    facts.sort_by_key(|fact| fact.at_ms);
    let mut gap = match consumer.kind() {
        Some(ConsumerKind::KafkaProducer) => of_kafka(&waiting, wanted),
        Some(ConsumerKind::Archiver) => of_archive(&waiting, wanted),
        Some(ConsumerKind::Downstreamer) | None => history.gap(wanted),
    };
    if let Some(filter) = consumer.notes.filter.as_ref().filter(|filter| !filter.is_empty()) {
        gap.push_str(&format!("; or its filter excludes it, which leaves no record: {filter}"));
    }
    let is_registered = waiting.is_registered;
    if !is_registered {
        gap = "not received: no consumer was started yet, so all that was accepted still waits"
            .to_owned();
    }
    let keeps_history = consumer.has_lanes();
    Ok(ConsumerFacts { consumer: name.clone(), is_registered, keeps_history, facts, gap })
}

/// Explains the gap of the Kafka producer, which keeps no history of what it settled.
fn of_kafka(waiting: &Waiting, wanted: &str) -> String {
    match wanted.parse::<WebhookId>() {
        Ok(id) if id.entry <= waiting.cursor() => {
            "it was settled: it is in the topic (record header spillway-id), a dead letter, or \
             dropped by order"
                .to_owned()
        }
        _ => "this consumer keeps no history; what is not listed here is in the topic (record header \
              x-shopify-webhook-id), or was never received"
            .to_owned(),
    }
}

/// Explains the gap of the archiver, which keeps no history either.
fn of_archive(waiting: &Waiting, wanted: &str) -> String {
    match wanted.parse::<WebhookId>() {
        Ok(id) if id.entry <= waiting.cursor() => {
            "it was settled: it is in the archive (spillway archive show --webhook-id), unless the \
             archiver began after it"
                .to_owned()
        }
        _ => "this consumer keeps no history; what is not listed here is in the archive (spillway \
              archive show --webhook-id), or was never received"
            .to_owned(),
    }
}

async fn dead_letters(
    place: &CellArgs,
    consumer: &str,
    wanted: &str,
) -> Result<Vec<Fact>, Failure> {
    let letters = dead::find(place, consumer, wanted).await?;
    Ok(letters.into_iter().map(|letter| dead_letter(consumer, letter)).collect())
}

fn dead_letter(consumer: &str, letter: DeadLetter) -> Fact {
    let mut why = dead::reason(&letter);
    if why == letter.reason {
        why.push_str(&format!(", last status {}", letter.status));
    }
    Fact {
        spillway_id: letter.webhook.to_string(),
        state: "dead",
        at_ms: letter.id.ms,
        text: format!(
            "is a dead letter: {why}, {} attempts; {} {} of {}. \
             `spillway dead show --consumer {consumer} {}`",
            letter.attempts, letter.topic, letter.resource, letter.shop, letter.webhook
        ),
        more: json!({
            "reason": letter.reason, "status": letter.status, "attempts": letter.attempts,
            "shop": letter.shop, "topic": letter.topic, "resource": letter.resource,
        }),
    }
}

async fn what_waits(
    waiting: &mut Waiting,
    consumer: &ConsumerStatus,
    wanted: &str,
) -> Result<Vec<Fact>, Failure> {
    let filter = Filter { webhook_id: Some(wanted.to_owned()), ..Filter::default() };
    let pauses = consumer.pauses.clone();
    let lanes = Arc::new(waiting.lanes(&filter).await?);
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
    // A Spillway-Id names the pack.
    match wanted.parse::<WebhookId>() {
        Ok(id) => waiting.pack(id.entry, look, &mut take).await?,
        Err(_) => waiting.main(look, &mut take).await?,
    }
    Ok(facts)
}

/// Describes the lane of a webhook, and why the webhook waits there.
fn lane(met: &Met<'_>, lanes: &[LaneRow]) -> String {
    let shop = met.shop();
    let kind = resource_kind(&met.topic());
    let own =
        lanes.iter().find(|row| row.shop == shop && (row.kind == kind || row.kind.is_empty()));
    let Some(row) = own else { return "in a lane".to_owned() };
    let name = if row.kind.is_empty() { shop } else { format!("{shop} {kind}") };
    let failing = age(row.failing.total().as_secs_f64());
    let state = match (row.tripped, row.suspect) {
        (true, _) => format!("its circuit breaker is open, nothing of it succeeded for {failing}"),
        (false, true) => {
            "its last attempt timed out or was cut off, so one is sent at a time".to_owned()
        }
        (false, false) => "its circuit breaker is closed".to_owned(),
    };
    format!("in the lane {name} with {} others: {state}", row.waiting.saturating_sub(1))
}

fn waits(met: &Met<'_>, pauses: &[Pause], lanes: &[LaneRow]) -> Fact {
    let received_ms = met.view.received_at_ms;
    let waited = age(float(now_ms().saturating_sub(received_ms)) / 1000.0);
    let shop = met.shop();
    let topic = met.topic();
    let resource = met.resource();
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
        spillway_id: met.id.to_string(),
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

fn text(wanted: &str, all: &[ConsumerFacts]) -> String {
    let mut text = printable(wanted.as_bytes());
    for ConsumerFacts { consumer, is_registered, keeps_history, facts, gap } in all {
        let state = if *is_registered { "" } else { " (not started yet)" };
        text.push_str(&format!("\n\n{consumer}{state}:"));
        for Fact { spillway_id, at_ms, text: fact, .. } in facts {
            let fact = printable(fact.as_bytes());
            text.push_str(&format!("\n  {}  {spillway_id}\n    {fact}", rfc3339(*at_ms)));
        }
        if facts.is_empty() || !keeps_history {
            text.push_str(&format!(
                "\n  {}{gap}",
                if facts.is_empty() { "not known: " } else { "" }
            ));
        }
    }
    text
}

fn object(wanted: &str, is_known: bool, all: &[ConsumerFacts]) -> Value {
    let fact = |fact: &Fact| {
        let mut object = fact.more.clone();
        object["spillway_id"] = fact.spillway_id.clone().into();
        object["state"] = fact.state.into();
        object["at"] = rfc3339(fact.at_ms).into();
        object["text"] = fact.text.clone().into();
        object
    };
    let known = |known: &ConsumerFacts| {
        let facts: Vec<Value> = known.facts.iter().map(fact).collect();
        json!({
            "consumer": known.consumer,
            "registered": known.is_registered,
            "facts": facts,
            "not_known": known.gap,
        })
    };
    let consumers: Vec<Value> = all.iter().map(known).collect();
    json!({ "query": wanted, "known": is_known, "consumers": consumers })
}
