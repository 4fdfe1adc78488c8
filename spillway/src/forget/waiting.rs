//! Waiting webhooks of somebody who is meant: each consumer's leader drops them, as for `spillway queue drop`.
//! Compliance webhooks stay: they are a legal duty. So do those that show the customer by address or number alone.

use std::sync::Arc;

use spillway_queue::consumers::ConsumerKind;
use spillway_queue::controls::Filter;
use spillway_queue::lane::LaneRow;
use spillway_queue::status::ConsumerStatus;
use spillway_webhook::redaction::MatchedBy;
use spillway_webhook::shopify::is_compliance;

use super::order::PurgeOrders;
use super::report::PurgeReport;
use crate::failure::Failure;
use crate::out::count;
use crate::place::CellArgs;
use crate::queue::drop::{DropChoice, find, give_order};
use crate::queue::drop_watch::watch;
use crate::walk::{Met, Waiting};

/// Orders the drop of what waits for a consumer, and waits until that is carried out, as long as it goes on.
pub(super) async fn drop_waiting(
    place: &CellArgs,
    consumer: &ConsumerStatus,
    orders: &Arc<PurgeOrders>,
    report: &mut PurgeReport,
) -> Result<(), Failure> {
    if consumer.kind() == Some(ConsumerKind::Archiver) {
        // An archive takes everything. What it has taken is erased there.
        return Ok(());
    }
    let name = consumer.name.as_str();
    let mut waiting = Waiting::for_consumer(place, name).await?;
    let meant = orders.clone();
    let choose = move |met: &Met<'_>| match meant.matched(met.id.entry, met.id.index, &met.view) {
        // What the backend has not seen is never lost for a text that others may have. The remains tell that it waits.
        None | Some(MatchedBy::Text) => DropChoice::Other,
        Some(MatchedBy::Id) if is_compliance(met.topic().as_bytes()) => DropChoice::Keep,
        Some(MatchedBy::Id) => DropChoice::Drop,
    };
    let may_hold = |row: &LaneRow| orders.may_mean(row.shop.as_bytes());
    let named = find(&mut waiting, &Filter::default(), may_hold, choose, |_| Ok(())).await?;
    report.counts.waiting += named.webhooks;
    if named.compliance_kept > 0 {
        report.pending.push(format!(
            "{} of a compliance topic for {name}: deliver them first",
            count(named.compliance_kept, "waiting webhook"),
        ));
    }
    if report.is_dry_run || named.webhooks == 0 {
        return Ok(());
    }
    let order = give_order(&mut waiting, &named, |_| {}).await?;
    watch(&mut waiting, order).await?;
    Ok(())
}
