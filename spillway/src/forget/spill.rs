//! Overflow log of a receiver on this machine: webhooks of somebody who is meant that lie in it. The receiver alone
//! deletes from it, once Redis has what is in it.

use std::fs;
use std::io;
use std::path::Path;

use spillway_spill::record::{HEAD_BYTES, Head};
use spillway_spill::segment;
use spillway_webhook::StreamId;
use spillway_webhook::pack::Pack;

use super::order::PurgeOrders;

/// Ending of a segment that was set aside because of its damage.
const DAMAGED: &str = ".damaged";

/// Findings in an overflow log.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct SpilledRemains {
    /// Webhooks of somebody who is meant.
    pub webhooks: u64,
    /// Segments that were set aside. Nobody reads or deletes them.
    pub damaged: u64,
}

/// Looks into the log. Its webhooks have no position yet, so what came after a redaction counts, too.
///
/// # Errors
/// If the directory or a segment cannot be read.
pub(super) fn look(directory: &Path, orders: &PurgeOrders) -> io::Result<SpilledRemains> {
    let mut found = SpilledRemains::default();
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        found.damaged += u64::from(name.ends_with(DAMAGED));
        if segment::first_of(&name).is_none() {
            continue;
        }
        match fs::read(entry.path()) {
            Ok(bytes) => found.webhooks += in_segment(&bytes, orders),
            // It is restored meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

fn in_segment(bytes: &[u8], orders: &PurgeOrders) -> u64 {
    let head_bytes = usize::try_from(segment::HEAD_BYTES).unwrap_or(usize::MAX);
    let mut rest = bytes.get(head_bytes..).unwrap_or_default();
    let mut found = 0;
    while let Some((head, after)) = rest.split_first_chunk::<HEAD_BYTES>() {
        let pack = Head::decode(head).and_then(|head| {
            let (pack, after) = after.split_at_checked(head.pack_bytes)?;
            head.is_of(pack).then_some((pack, after))
        });
        match pack {
            Some((pack, after)) => {
                found += in_pack(pack, orders);
                rest = after;
            }
            // Damage, or a record that is being written: a record is searched for at each byte.
            None => rest = &rest[1..],
        }
    }
    found
}

fn in_pack(bytes: &[u8], orders: &PurgeOrders) -> u64 {
    let Ok(pack) = Pack::decode(bytes) else { return u64::from(orders.is_shown_by(bytes)) };
    let is_meant = |index: &u32| orders.is_meant(StreamId::ZERO, *index, &pack.view(*index));
    (0..pack.count()).filter(is_meant).map(|_| 1).sum()
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue};
    use spillway_webhook::pack::{Packer, Records};
    use spillway_webhook::{Redaction, Webhook};

    use super::*;
    use crate::forget::order::PurgeOrder;

    fn record(shop: &'static str, number: u64) -> Vec<u8> {
        let mut headers = HeaderMap::new();
        headers.insert("x-shopify-shop-domain", HeaderValue::from_static(shop));
        let target = http::uri::PathAndQuery::from_static("/");
        let mut records = Records::default();
        records.push(&Webhook { received_at_ms: 7, target, headers, body: "{}".into() });
        let mut packer = Packer::new();
        let pack = packer.pack(&records);
        [&Head::of(pack, 1, number, 0).encode()[..], pack].concat()
    }

    #[test]
    fn webhooks_are_found_also_after_damage() {
        let directory = tempfile::tempdir().expect("a directory");
        let last = StreamId { ms: 5, seq: 0 };
        let order = PurgeOrder::until(Redaction::of_shop("a.example"), last);
        let orders = PurgeOrders::new(vec![order]);
        let look = || look(directory.path(), &orders).expect("it can be read");
        assert_eq!(look(), SpilledRemains::default());
        let head = segment::Head { log_id: 1, after: 0, first: 1 }.encode();
        let records = [record("a.example", 1), record("b.example", 2), record("a.example", 3)];
        let path = segment::path(directory.path(), 1);
        fs::write(&path, [&head[..], &records.concat()].concat()).expect("write a segment");
        assert_eq!(look().webhooks, 2);
        let mut bytes = fs::read(&path).expect("a segment");
        bytes[head.len() + 9] ^= 1;
        fs::write(&path, bytes).expect("damage it");
        assert_eq!(look(), SpilledRemains { webhooks: 1, damaged: 0 });
        fs::rename(&path, segment::path_aside(&path)).expect("set it aside");
        assert_eq!(look(), SpilledRemains { webhooks: 0, damaged: 1 });
    }
}
