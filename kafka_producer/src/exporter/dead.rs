//! Gives a webhook up that Kafka refused in a transaction without others.
//!
//! The dead letter and the bit of the webhook are one settlement, made before the commit that goes
//! past the webhook. After a crash in between, the bit is found, and the webhook is not tried
//! again.

use std::time::Duration;

use rdkafka::error::RDKafkaErrorCode as Code;
use spillway_queue::settle::{Dead, Settlement};
use spillway_webhook::pack::Pack;
use spillway_webhook::resource::Resource;
use spillway_webhook::shopify::Headers;

use super::settling;
use super::{Exporter, ProducerSession, Stop};
use crate::open::{Alone, RecordRef};

/// Time between checks for the room for one more dead letter.
const NO_ROOM_PAUSE: Duration = Duration::from_secs(1);
/// Makes a dead letter of the webhook. Waits while there is no room for one.
pub(super) fn give_up(
    exporter: &mut Exporter,
    session: &mut ProducerSession,
    alone: &Alone,
    code: Code,
) -> Result<(), Stop> {
    let dead = dead_letter(exporter, alone, code);
    let bytes = dead.size_bytes();
    let reason = dead.reason;
    // Made also if Redis is full: nothing can go past the webhook before, and only then is
    // anything freed.
    while !exporter.leader.try_reserve_dead(bytes, exporter.settings.dead_bytes_max) {
        exporter.trouble(
            "dead_letters_full: kafka refuses a webhook, and there is no room for one more \
             dead letter (DEAD_MAX)"
                .into(),
        );
        exporter.pause(NO_ROOM_PAUSE)?;
        session.link.poll(Duration::ZERO);
        settling::hear_settled(exporter, session)?;
    }
    let mut settlement = Settlement { dead: vec![dead], ..Settlement::default() };
    match alone.place {
        RecordRef::Main(id, index) => {
            let size = alone.pack.count().div_ceil(8) as usize;
            let bits = session.given_up.entry(id).or_default();
            bits.resize(size.max(bits.len()), 0);
            bits[index as usize / 8] |= 1 << (index % 8);
            settlement.bits.push((id, bits.clone()));
        }
        RecordRef::Replay(id) => settlement.replays.push(id),
    }
    settlement.settled_after_cursor = session.open_webhooks();
    settling::settle_now(exporter, settlement)?;
    exporter.leader.settled_dead(bytes);
    exporter.metrics.dead(reason);
    exporter.learned.suspects.remove(&alone.place);
    tracing::warn!(
        webhook = %alone.webhook,
        %code,
        "kafka refuses a webhook: it is a dead letter now, and the others continue"
    );
    Ok(())
}

fn dead_letter(exporter: &mut Exporter, alone: &Alone, code: Code) -> Dead {
    let view = alone.pack.view(alone.index);
    let text = |value: Option<&[u8]>| String::from_utf8_lossy(value.unwrap_or_default()).into();
    let labels = [
        text(view.shop()),
        text(view.topic().as_deref()),
        Resource::of(&view, view.body).to_string(),
        text(view.shopify("webhook-id")),
    ];
    let pack: &Pack = &alone.pack;
    Dead {
        pack: exporter.packer.single_out(pack, alone.index),
        webhook: alone.webhook,
        labels,
        reason: match code {
            Code::MessageSizeTooLarge | Code::MessageBatchTooLarge => "too_large",
            _ => "refused",
        },
        status: 0,
        attempts: 1,
        answer: code.to_string().into_bytes(),
    }
}
