//! Dead letters of somebody who is meant: they are dropped. Compliance webhooks stay until they are delivered.

use spillway_queue::dead::{DeadLetter, Take, list, take};
use spillway_queue::{Connection, Redis};
use spillway_webhook::StreamId;
use spillway_webhook::pack::Pack;
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
    let mut kept = 0;
    loop {
        let page = list(redis, connection, consumer, after, PAGE).await?;
        let Some(last) = page.last() else { break };
        after = last.id;
        let mut ids: Vec<StreamId> = Vec::new();
        for letter in page.iter().filter(|letter| is_meant(letter, orders)) {
            if is_compliance(letter.topic.as_bytes()) {
                kept += 1;
            } else {
                ids.push(letter.id);
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
    Ok(())
}

fn is_meant(letter: &DeadLetter, orders: &PurgeOrders) -> bool {
    if !orders.may_mean(letter.shop.as_bytes()) {
        return false;
    }
    match Pack::decode(&letter.pack) {
        Ok(pack) if pack.count() > 0 => {
            orders.is_meant(letter.webhook.entry, letter.webhook.index, &pack.view(0))
        }
        Ok(_) => false,
        Err(_) => orders.is_shown_by(&letter.pack),
    }
}
