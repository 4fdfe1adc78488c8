//! Dead letters of somebody who is meant: they are dropped. Compliance webhooks stay until they are delivered, and so do
//! those that show the customer by address or number alone.

use spillway_queue::dead::{DeadLetter, Take, list, take};
use spillway_queue::{Connection, Redis};
use spillway_webhook::StreamId;
use spillway_webhook::pack::Pack;
use spillway_webhook::redaction::MatchedBy;
use spillway_webhook::shopify::is_compliance;

use super::order::PurgeOrders;
use super::report::PurgeReport;
use crate::failure::Failure;
use crate::out::count;

/// Dead letters that are read at a time, each with its body.
const PAGE: usize = 32;

/// Drops the dead letters of a consumer.
pub(super) async fn drop_dead(
    redis: &Redis,
    connection: &mut Connection,
    consumer: &str,
    orders: &PurgeOrders,
    report: &mut PurgeReport,
) -> Result<(), Failure> {
    let mut after = StreamId::ZERO;
    let (mut kept, mut unsure) = (0, 0);
    loop {
        let page = list(redis, connection, consumer, after, PAGE).await?;
        let Some(last) = page.last() else { break };
        after = last.id;
        let mut ids: Vec<StreamId> = Vec::new();
        for letter in &page {
            match matched(letter, orders) {
                None => {}
                Some(MatchedBy::Text) => unsure += 1,
                Some(MatchedBy::Id) if is_compliance(letter.topic.as_bytes()) => kept += 1,
                Some(MatchedBy::Id) => ids.push(letter.id),
            }
        }
        report.counts.dead_letters += match report.is_dry_run {
            true => ids.len() as u64,
            false => take(redis, connection, consumer, Take::Drop, &ids).await?,
        };
    }
    if kept > 0 {
        report.pending.push(format!(
            "{} of a compliance topic for {consumer}: `spillway dead replay --consumer {consumer}` delivers them",
            count(kept, "dead letter"),
        ));
    }
    if unsure > 0 {
        report.pending.push(format!(
            "{} of {consumer} that may show somebody who is meant, by address or number alone: deliver or drop them \
             with `spillway dead`",
            count(unsure, "dead letter"),
        ));
    }
    Ok(())
}

/// Sign by which a dead letter holds data of somebody who is meant. Bytes that cannot be decoded are no sure one.
fn matched(letter: &DeadLetter, orders: &PurgeOrders) -> Option<MatchedBy> {
    if !orders.may_mean(letter.shop.as_bytes()) {
        return None;
    }
    match Pack::decode(&letter.pack) {
        Ok(pack) if pack.count() > 0 => {
            orders.matched(letter.webhook.entry, letter.webhook.index, &pack.view(0))
        }
        Ok(_) => None,
        Err(_) => orders.is_shown_by(&letter.pack).then_some(MatchedBy::Text),
    }
}
