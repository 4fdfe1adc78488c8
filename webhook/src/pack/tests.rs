//! A packed webhook comes out unchanged, and damage is detected.

use super::*;
use http::{HeaderMap, HeaderName, HeaderValue};
use proptest::prelude::*;

fn webhook(target: &str, headers: &[(String, Vec<u8>)], body: Vec<u8>) -> Webhook {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.append(
            HeaderName::from_bytes(name.as_bytes()).unwrap(),
            HeaderValue::from_bytes(value).unwrap(),
        );
    }
    let target = target.parse().unwrap();
    Webhook { received_at_ms: 7, target, headers: map, body: Bytes::from(body) }
}

fn pack_of(webhooks: &[Webhook]) -> Vec<u8> {
    let mut records = Records::default();
    webhooks.iter().for_each(|webhook| records.push(webhook));
    Packer::new().pack(&records).to_vec()
}

proptest! {
    #[test]
    fn what_goes_in_comes_out(
        target in "/[!$-;=?-Z_a-z~]{0,40}",
        headers in prop::collection::vec(("x-[a-z]{1,8}", "[ -~]{0,30}".prop_map(String::into_bytes)), 0..8),
        bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..3000), 1..5),
    ) {
        let webhooks: Vec<_> =
            bodies.iter().map(|body| webhook(&target, &headers, body.clone())).collect();
        let pack = Pack::decode(&pack_of(&webhooks)).unwrap();
        prop_assert_eq!(pack.count() as usize, webhooks.len());
        for (index, sent) in webhooks.iter().enumerate() {
            let record = pack.record(index as u32);
            prop_assert_eq!(&record.target, sent.target.as_str());
            prop_assert_eq!(&record.body, &sent.body);
            let kept: Vec<_> = sent.kept_headers()
                .map(|(n, v)| (Bytes::copy_from_slice(n.as_str().as_bytes()), Bytes::copy_from_slice(v)))
                .collect();
            prop_assert_eq!(&record.headers, &kept);
            let view = pack.view(index as u32);
            prop_assert_eq!(view.received_at_ms, record.received_at_ms);
            prop_assert_eq!((view.target, view.body), (&record.target[..], &record.body[..]));
            let viewed: Vec<_> = view.headers()
                .map(|(n, v)| (Bytes::copy_from_slice(n), Bytes::copy_from_slice(v)))
                .collect();
            prop_assert_eq!(viewed, kept);
        }
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(Pack::decode(&bytes).is_err());
    }

    #[test]
    fn lengths_that_lie_under_a_right_checksum_are_refused_or_consistent(
        at in 0usize..200, value in any::<u8>()
    ) {
        // Incompressible, so that the payload is stored and its lengths can be changed.
        let body: Vec<u8> = (0..150u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let mut bytes = pack_of(&[webhook("/a", &[], body.clone()), webhook("/b", &[], body)]);
        let at = CRC_COVERS_FROM + at % (bytes.len() - CRC_COVERS_FROM);
        bytes[at] = value;
        let crc = crc32fast::hash(&bytes[CRC_COVERS_FROM..]);
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        if let Ok(pack) = Pack::decode(&bytes) {
            (0..pack.count()).for_each(|index| {
                pack.record(index);
                pack.view(index).headers().count();
            });
        }
    }
}

#[test]
fn a_flipped_bit_anywhere_is_noticed() {
    let good = pack_of(&[webhook("/a", &[], vec![b'x'; 500])]);
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        assert!(Pack::decode(&bad).is_err(), "byte {at}");
    }
}

#[test]
fn a_record_moves_to_a_pack_of_its_own_unchanged() {
    let pack = Pack::decode(&pack_of(&[
        webhook("/a", &[], b"{1".to_vec()),
        webhook("/b", &[("x-a".into(), b"1".to_vec())], b"{2".to_vec()),
    ]))
    .unwrap();
    let alone = Pack::decode(&Packer::new().single_out(&pack, 1)).unwrap();
    assert_eq!(alone.count(), 1);
    assert_eq!(alone.record(0).target, "/b");
    assert_eq!(alone.record(0).body, "{2");
    assert_eq!(alone.record(0).headers, pack.record(1).headers);
}

#[test]
fn records_are_left_out_without_a_change_to_the_others() {
    let records_of = |bodies: &[&'static str]| {
        let mut records = Records::default();
        for body in bodies {
            records.push(&webhook("/a", &[], body.as_bytes().to_vec()));
        }
        records
    };
    let mut packer = Packer::new();
    // The second pack of a packer holds nothing of the first.
    packer.pack(&records_of(&["{a longer one than any of the others"]));
    let mut records = records_of(&["{1", "{22", "{333", "{4444"]);
    records.retain(|index| index != 1 && index != 3);
    let pack = Pack::decode(packer.pack(&records)).unwrap();
    let bodies: Vec<_> = (0..pack.count()).map(|index| pack.record(index).body).collect();
    assert_eq!(bodies, ["{1", "{333"]);
    records.retain(|_| false);
    assert_eq!((records.count(), records.bytes()), (0, 0));
}

#[test]
fn an_erased_webhook_keeps_its_place_and_the_others_are_unchanged() {
    let sent: Vec<_> = (0..3)
        .map(|number| webhook("/a", &[("x-a".to_owned(), b"1".to_vec())], vec![b'0' + number; 100]))
        .collect();
    let pack = Pack::decode(&pack_of(&sent)).unwrap();
    let erased = Packer::new().erase(&pack, |index| index == 1).to_vec();
    let erased = Pack::decode(&erased).unwrap();
    let is_erased: Vec<_> = (0..3).map(|index| erased.view(index).is_erased()).collect();
    assert_eq!(is_erased, [false, true, false]);
    assert_eq!(erased.view(1).received_at_ms, 7);
    for index in [0, 2] {
        assert_eq!(erased.record_bytes(index), pack.record_bytes(index));
    }
}
