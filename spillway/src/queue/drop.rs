//! `spillway queue drop`: names what waits and matches, and orders the drain to drop it.
//!
//! The drain settles: this command only says which. It reads every pack first, so exactly those are
//! dropped that wait at that moment; what comes later stays. Then it watches the drain do it.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use spillway_queue::history::{Outcome, Past};
use spillway_queue::orders::{self, CarriedOut, Dropping, Filter};
use spillway_queue::status;
use spillway_webhook::fingerprint::id_key;
use spillway_webhook::shopify::Headers;

use super::list::NOTHING;
use crate::consent::Consent;
use crate::failure::Failure;
use crate::filter::FilterArguments;
use crate::out::{Progress, count, line};
use crate::place::Place;
use crate::walk::{Look, Met, Waiting};

/// How long the drain may make no headway before it is no longer watched.
const PATIENCE: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Webhooks whose history says that their drop was ordered: bounds the order's size.
const RECORDED_MAX: usize = 200_000;

/// Of `drop`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    filter: FilterArguments,
    #[command(flatten)]
    consent: Consent,
    /// Do not wait until the drain has done it
    #[arg(long)]
    no_wait: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What is to be dropped.
#[derive(Default)]
struct Named {
    dropping: Dropping,
    history: Vec<u8>,
    webhooks: u64,
    compliance_kept: u64,
}

/// What a look found: a webhook by its place, and its record.
struct One {
    past: Past,
    replay: Option<spillway_webhook::StreamId>,
    is_kept: bool,
}

/// Drops what matches.
pub async fn run(place: &Place, drain: &str, arguments: Arguments) -> Result<(), Failure> {
    let filter = arguments.filter.clone().filter();
    let consent = arguments.consent;
    if filter.is_empty() && !consent.all {
        let hint = "give a filter (--shop, --topic, --resource, --webhook-id), or --all";
        return Err(Failure::Usage(hint.to_owned()));
    }
    let mut waiting = Waiting::for_drain(place, drain).await?;
    let named = find(&mut waiting, filter, consent).await?;
    consent.tell_kept(named.compliance_kept, "webhook");
    if named.webhooks == 0 {
        return Ok(line(if arguments.json { r#"{"matched":0}"# } else { NOTHING })?);
    }
    consent.given(named.webhooks, "webhook", drain)?;
    let redis = waiting.redis.clone();
    let before = orders::carried_out(&redis, waiting.connection(), drain).await?;
    let Named { dropping, history, webhooks, .. } = named;
    let connection = waiting.connection();
    let version = orders::drop(&redis, connection, drain, &dropping, &history).await?;
    let dropped = match arguments.no_wait {
        true => 0,
        false => watch(&mut waiting, drain, version, before, webhooks).await?,
    };
    tell(&mut waiting, drain, webhooks, dropped, &arguments).await
}

async fn find(waiting: &mut Waiting, filter: Filter, consent: Consent) -> Result<Named, Failure> {
    let mut named = Named::default();
    let wanted = filter.clone();
    let look = move |look: &Look<'_>| {
        let meant = look.webhooks().filter(|met| met.is_meant(&wanted));
        meant.map(|met| One::of(&met, consent)).collect::<Vec<One>>()
    };
    let (mut progress, mut seen, packs) = (Progress::new(), 0, waiting.packs);
    waiting
        .main(look.clone(), |found| {
            seen += 1;
            progress.tell(|| format!("read {seen} of {} packs", packs));
            named.take(found)
        })
        .await?;
    // Last, or webhooks that leave the main stream while it is read would be found in neither.
    let lanes = waiting.lanes(&filter).await?;
    waiting.aside(&lanes, look, |found| named.take(found)).await?;
    Ok(named)
}

impl One {
    fn of(met: &Met<'_>, consent: Consent) -> Self {
        let key = met.view.shopify("webhook-id").map_or(0, id_key);
        let attempts = met.aside.map_or(0, |aside| aside.attempts);
        Self {
            past: Past {
                key,
                entry: met.id.entry,
                index: met.id.index,
                outcome: Outcome::Dropped,
                attempts: u8::try_from(attempts).unwrap_or(u8::MAX),
            },
            replay: met.aside.and_then(|aside| aside.replay),
            is_kept: consent.keeps(&met.topic()),
        }
    }
}

impl Named {
    fn take(&mut self, found: Vec<One>) -> ControlFlow<()> {
        for One { past, replay, is_kept } in found {
            if is_kept {
                self.compliance_kept += 1;
                continue;
            }
            if self.dropping.is_named(past.entry, past.index) {
                // It left the main stream since it was found there.
                self.dropping.replays.extend(replay);
                continue;
            }
            self.webhooks += 1;
            match replay {
                None => self.dropping.name(past.entry, past.index),
                Some(id) => {
                    self.dropping.replays.insert(id);
                }
            }
            if self.webhooks as usize <= RECORDED_MAX {
                past.write(&mut self.history);
            }
        }
        ControlFlow::Continue(())
    }
}

/// How many were dropped by the time that the drain had done it, or made no headway any more.
async fn watch(
    waiting: &mut Waiting,
    drain: &str,
    version: u64,
    before: CarriedOut,
    wanted: u64,
) -> Result<u64, Failure> {
    let redis = waiting.redis.clone();
    let (mut moved_at, mut last) = (Instant::now(), before);
    let mut progress = Progress::new();
    loop {
        let now = orders::carried_out(&redis, waiting.connection(), drain).await?;
        let dropped = now.dropped.saturating_sub(before.dropped);
        if dropped >= wanted || now.version >= version {
            return Ok(dropped);
        }
        if now != last {
            (moved_at, last) = (Instant::now(), now);
        }
        if moved_at.elapsed() > PATIENCE {
            return Ok(dropped);
        }
        progress.tell(|| format!("dropped {dropped} of {wanted}"));
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn tell(
    waiting: &mut Waiting,
    drain: &str,
    wanted: u64,
    dropped: u64,
    arguments: &Arguments,
) -> Result<(), Failure> {
    let left = wanted.saturating_sub(dropped);
    if arguments.json {
        let object = serde_json::json!({
            "drain": drain, "matched": wanted, "dropped": dropped, "not_yet": left,
        });
        return Ok(line(object)?);
    }
    if left == 0 {
        return Ok(line(format_args!("dropped {}", count(dropped, "webhook")))?);
    }
    let redis = waiting.redis.clone();
    let status = status::read(&redis, waiting.connection()).await?;
    let is_owned = status.drains.iter().any(|known| known.name == drain && known.owner.is_some());
    let why = match is_owned {
        true => "under way, and dropped if that fails, or still to be read by the drain",
        false => "to be dropped as soon as the drain runs: nobody owns it",
    };
    Ok(line(format_args!("dropped {}; {left} more: {why}", count(dropped, "webhook")))?)
}
