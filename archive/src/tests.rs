//! Objects are read as they were written, damage is found, and an archive in a directory holds what was put.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use proptest::prelude::*;
use spillway_webhook::pack::{Pack, Packer, Records};
use spillway_webhook::{StreamId, Webhook};

use crate::bloom::{resource_hash, webhook_id_hash};
use crate::keys::KeyRing;
use crate::keys::tests::{NEW, OLD, ring};
use crate::store::{ArchiveStore, ArchiveUrl, PutOutcome};
use crate::{
    ArchiveObject, ArchiveReader, BadObject, ListedObject, ObjectTail, ObjectWriter, SealedObject,
    StoreError,
};

mod erase;
mod generations;

const CELL: u32 = 0xa1b2_c3d4;
/// Noon of 2026-01-01.
const NOON: u64 = 1_767_268_800_000;

fn id(ms: u64, seq: u64) -> StreamId {
    StreamId { ms: NOON + ms, seq }
}

/// A webhook about this product.
fn webhook(product: u64, body_bytes: usize) -> Webhook {
    let mut headers = HeaderMap::new();
    for (name, value) in [
        ("x-shopify-topic", "products/update".to_owned()),
        ("x-shopify-shop-domain", format!("shop-{}.myshopify.com", product % 7)),
        ("x-shopify-webhook-id", format!("id-{product}")),
        ("x-shopify-product-id", product.to_string()),
    ] {
        headers
            .insert(HeaderName::from_static(name), HeaderValue::try_from(value).expect("a value"));
    }
    // Not too compressible.
    let fill = (0..body_bytes as u64).map(|at| {
        let mut mixed = (product * 1_000_003 + at).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        b'0' + u8::try_from(mixed >> 58).expect("six bits")
    });
    let body = fill.collect::<Vec<u8>>().into();
    Webhook {
        received_at_ms: NOON + product,
        target: "/hooks".parse().expect("a target"),
        headers,
        body,
    }
}

/// A pack of webhooks about these products.
fn pack(products: impl IntoIterator<Item = u64>, body_bytes: usize) -> Bytes {
    let mut records = Records::default();
    products.into_iter().for_each(|product| records.push(&webhook(product, body_bytes)));
    Packer::new().pack(&records).to_vec().into()
}

fn object(packs: &[(StreamId, Bytes)], keys: &KeyRing) -> SealedObject {
    let mut writer = ObjectWriter::new(CELL, id(0, 0), keys).expect("randomness");
    for (entry, pack) in packs {
        writer.add(*entry, pack.clone());
    }
    writer.finish().expect("packs")
}

fn whole(object: &SealedObject) -> Bytes {
    let bytes: Bytes = object.parts.concat().into();
    assert_eq!(bytes.len() as u64, object.bytes);
    bytes
}

fn sample(keys: &KeyRing) -> (Vec<(StreamId, Bytes)>, SealedObject) {
    let packs = vec![
        (id(1, 0), pack(1..3, 40)),
        (id(1, 1), Bytes::from_static(b"no pack at all")),
        (id(9, 0), pack(3..4, 40)),
    ];
    let object = object(&packs, keys);
    (packs, object)
}

#[test]
fn an_object_is_read_as_it_was_written_with_and_without_a_key() {
    for keys in [KeyRing::default(), ring(&[NEW, OLD])] {
        let (packs, sealed) = sample(&keys);
        let name = sealed.name;
        assert_eq!(
            (name.cell, name.first, name.last, name.webhooks),
            (CELL, id(1, 0), id(9, 0), 3)
        );
        let opened = ArchiveObject::open(whole(&sealed), &keys).expect("our own object");
        let ObjectTail { header, index, .. } = &opened.tail;
        assert_eq!((header.cell, header.after), (CELL, id(0, 0)));
        assert_eq!(header.key.is_some(), !keys.is_empty());
        assert_eq!(index.received_ms, Some((NOON + 1, NOON + 3)));
        assert_eq!((index.webhooks(), index.corrupt_packs()), (3, 1));
        assert_eq!(index.tag(), name.tag);
        for (number, (entry, pack)) in packs.iter().enumerate() {
            assert_eq!(index.packs[number].entry, *entry);
            assert_eq!(opened.pack(number).as_ref(), Ok(pack));
        }
        assert!(opened.pack(packs.len()).is_err());
        let shops: Vec<_> = index.shops.iter().map(|(_, webhooks)| webhooks).collect();
        assert_eq!(shops, [1, 1, 1]);
        assert!(index.topics.may_hold(|topic| topic == b"products/update"));
        assert!(index.webhook_ids.may_hold(webhook_id_hash(b"id-2")));
        assert!(index.resources.may_hold(resource_hash(b"shop-2.myshopify.com", b"product/2")));
    }
}

#[test]
fn every_flipped_bit_and_every_cut_of_an_object_is_found() {
    for keys in [KeyRing::default(), ring(&[NEW])] {
        let good = whole(&sample(&keys).1);
        for at in 0..good.len() {
            assert!(ArchiveObject::open(good.slice(..at), &keys).is_err(), "cut to {at}");
            assert!(
                ArchiveObject::open(good.slice(at + 1..), &keys).is_err(),
                "without {at} bytes"
            );
            for bit in 0..8 {
                let mut bad = good.to_vec();
                bad[at] ^= 1 << bit;
                assert!(ArchiveObject::open(bad.into(), &keys).is_err(), "bit {bit} of byte {at}");
            }
        }
    }
}

#[test]
fn an_encrypted_object_needs_its_key_and_shows_nothing_without() {
    let (_, sealed) = sample(&ring(&[OLD]));
    let bytes = whole(&sealed);
    for hidden in ["myshopify", "products/update", "no pack at all"] {
        assert!(!bytes.windows(hidden.len()).any(|part| part == hidden.as_bytes()), "{hidden}");
    }
    let refused = ArchiveObject::open(bytes.clone(), &ring(&[NEW])).map(|_| ());
    assert_eq!(refused, Err(BadObject::NoKey("2025".to_owned())));
    assert!(ArchiveObject::open(bytes, &ring(&[NEW, OLD])).is_ok());
}

#[test]
fn the_end_is_enough_for_the_index_and_the_place_of_each_pack() {
    for keys in [KeyRing::default(), ring(&[NEW])] {
        let (packs, sealed) = sample(&keys);
        let bytes = whole(&sealed);
        let needed = ObjectTail::needed(&bytes[bytes.len() - 52..]).expect("a trailer");
        let end = bytes.slice(bytes.len() - needed..);
        assert!(ObjectTail::decode(&end[1..], &keys).is_err());
        let tail = ObjectTail::decode(&end, &keys).expect("our own object");
        assert_eq!(tail.object_bytes(), sealed.bytes);
        for (number, (_, pack)) in packs.iter().enumerate() {
            let frame = tail.frame(number).expect("a place");
            let frame = bytes.slice(frame.start as usize..frame.end as usize);
            assert_eq!(tail.open_frame(number, &frame).as_ref(), Ok(pack));
            let other = (number + 1) % packs.len();
            assert!(tail.open_frame(other, &frame).is_err());
        }
    }
}

#[test]
fn an_object_is_at_most_a_twentieth_larger_than_its_packs() {
    for (packs, each, body) in [(40, 64, 600), (400, 4, 600), (200, 16, 2_000)] {
        let packs: Vec<_> = (0..packs)
            .map(|number| (id(1 + number, 0), pack(number * each..(number + 1) * each, body)))
            .collect();
        let bytes: usize = packs.iter().map(|(_, pack)| pack.len()).sum();
        for keys in [KeyRing::default(), ring(&[NEW])] {
            let object = object(&packs, &keys).bytes as f64 / bytes as f64;
            assert!(object <= 1.05, "{object:.3} times the packs of {each} webhooks");
        }
    }
}

#[test]
fn the_name_tells_the_packs_and_not_the_key() {
    let packs = [(id(1, 0), pack(1..3, 40))];
    let name = object(&packs, &KeyRing::default()).name;
    assert_eq!(object(&packs, &ring(&[NEW])).name, name);
    assert_ne!(object(&[(id(1, 0), pack(1..3, 41))], &KeyRing::default()).name, name);
    let none = ObjectWriter::new(CELL, id(0, 0), &KeyRing::default()).expect("randomness");
    assert!(none.finish().is_none(), "there is no empty object");
}

proptest! {
    #[test]
    fn what_goes_in_comes_out(
        steps in prop::collection::vec((1u64..1_000, 0usize..4, 0usize..300, any::<bool>()), 1..12),
        is_encrypted in any::<bool>(),
    ) {
        let keys = if is_encrypted { ring(&[NEW]) } else { KeyRing::default() };
        let mut ms = 0;
        let packs: Vec<_> = steps.into_iter().map(|(step, count, body, is_pack)| {
            ms += step;
            let pack = if is_pack { pack(ms..ms + count as u64, body) } else { vec![7; body].into() };
            (id(ms, 0), pack)
        }).collect();
        let sealed = object(&packs, &keys);
        let opened = ArchiveObject::open(whole(&sealed), &keys).expect("our own object");
        for (number, (_, pack)) in packs.iter().enumerate() {
            let read = opened.pack(number);
            prop_assert_eq!(read.as_ref(), Ok(pack));
        }
        prop_assert_eq!(opened.tail.index.webhooks(), sealed.name.webhooks);
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(ArchiveObject::open(bytes.into(), &KeyRing::default()).is_err());
    }
}

fn directory() -> (tempfile::TempDir, ArchiveStore) {
    let directory = tempfile::tempdir().expect("a directory");
    let url = ArchiveUrl::parse(&format!("file://{}", directory.path().display())).expect("a URL");
    let store = ArchiveStore::open(&url).expect("it exists");
    (directory, store)
}

/// The only object of an archive, as a list has it.
async fn listed(store: &ArchiveStore, sealed: &SealedObject) -> ListedObject {
    let objects = store.objects(CELL, "2026-01-01").await.expect("a list");
    let [listed] = objects[..] else { panic!("{objects:?}") };
    assert_eq!((listed.name, listed.bytes), (sealed.name, sealed.bytes));
    listed
}

/// Makes a file look as if it had been written two hours ago.
fn age(file: &std::path::Path) {
    let file = std::fs::File::options().write(true).open(file).expect("a file");
    let before = std::time::SystemTime::now() - std::time::Duration::from_secs(7200);
    file.set_modified(before).expect("set its time");
}

#[tokio::test]
async fn a_directory_holds_what_was_put_and_lists_it() {
    let (directory, store) = directory();
    let keys = KeyRing::default();
    let (packs, sealed) = sample(&keys);
    assert_eq!(store.cells().await.expect("a list"), [0; 0]);
    assert_eq!(store.put(&sealed, true).await.expect("a put"), PutOutcome::Written);
    assert_eq!(store.put(&sealed, true).await.expect("a put"), PutOutcome::Exists);
    assert_eq!(store.put(&sealed, false).await.expect("a put"), PutOutcome::Written);
    assert_eq!(store.cells().await.expect("a list"), [CELL]);
    assert_eq!(store.days(CELL).await.expect("a list"), ["2026-01-01"]);
    let day = directory.path().join("a1b2c3d4/2026-01-01");
    std::fs::write(day.join("README.txt"), "not ours").expect("write");
    let staged =
        day.join(format!("{}#1", sealed.name.to_string().rsplit('/').next().expect("a file")));
    std::fs::write(&staged, "half").expect("write");
    let listed = listed(&store, &sealed).await;
    store.remove_staged(CELL, id(0, 0)).await;
    assert!(staged.exists(), "its writer may live");
    age(&staged);
    age(&day.join("README.txt"));
    store.remove_staged(CELL, id(86_400_000, 0)).await;
    assert!(staged.exists(), "of an earlier day");
    store.remove_staged(CELL, id(0, 0)).await;
    assert!(!staged.exists() && day.join("README.txt").exists());
    assert_eq!(store.objects_from(CELL, id(9, 0)).await.expect("a list"), [listed]);
    assert_eq!(
        store.objects_from(CELL, id(9, 1)).await.expect("a list"),
        [0; 0].map(|_: u8| listed)
    );
    let newest = async |until| store.newest_before(CELL, until).await.expect("a list");
    assert_eq!(newest(id(9, 0)).await, None, "it does not end before its last entry");
    assert_eq!(newest(id(9, 1)).await, Some(listed));
    assert_eq!(newest(id(900_000_000, 0)).await, Some(listed));
    let tail = store.tail(&listed, &keys).await.expect("an index");
    assert_eq!(store.pack(&sealed.name, &tail, 0).await.expect("a pack"), packs[0].1);
    let object = store.object(&sealed.name, &keys).await.expect("an object");
    assert_eq!(object.pack(2).as_ref(), Ok(&packs[2].1));
    store.delete(&sealed.name).await.expect("it is deleted");
    store.delete(&sealed.name).await.expect("and gone");
    assert!(store.object(&sealed.name, &keys).await.is_err());
}

#[tokio::test]
async fn an_index_larger_than_the_first_request_is_read_too() {
    let (_directory, store) = directory();
    let keys = KeyRing::default();
    let packs: Vec<_> =
        (0..60).map(|at| (id(1 + at, 0), pack(at * 1_000..(at + 1) * 1_000, 1))).collect();
    let sealed = object(&packs, &keys);
    store.put(&sealed, true).await.expect("a put");
    let listed = listed(&store, &sealed).await;
    let tail = store.tail(&listed, &keys).await.expect("an index");
    assert_eq!(tail.index.webhooks(), 60_000);
    assert!(tail.index.webhook_ids.may_hold(webhook_id_hash(b"id-59999")));
}

#[tokio::test]
async fn an_object_that_was_found_is_made_durable_as_a_new_file() {
    use std::os::unix::fs::MetadataExt;
    let (directory, store) = directory();
    let keys = KeyRing::default();
    let (_, sealed) = sample(&keys);
    store.put(&sealed, true).await.expect("a put");
    let file = directory.path().join(sealed.name.to_string());
    // It stays open, so that no other file gets its number.
    let before = std::fs::File::open(&file).expect("a file");
    let found = store.object(&sealed.name, &keys).await.expect("an object");
    store.make_durable(&sealed.name, &found).await.expect("it is written");
    let number = before.metadata().expect("about it").ino();
    assert_ne!(std::fs::metadata(&file).expect("about it").ino(), number, "a new file");
    assert_eq!(std::fs::read(&file).expect("its bytes"), whole(&sealed));
    directory.close().expect("remove it");
    let written = store.make_durable(&sealed.name, &found).await;
    assert_eq!(written.expect_err("its disk is not mounted").kind(), "unusable");
}

#[tokio::test]
async fn a_directory_that_vanished_is_an_error_and_not_made_again() {
    let (directory, store) = directory();
    let path = directory.path().to_owned();
    directory.close().expect("remove it");
    let (_, sealed) = sample(&KeyRing::default());
    for is_new in [true, false] {
        let put = store.put(&sealed, is_new).await.map(|_| ());
        assert_eq!(put.expect_err("its disk is not mounted").kind(), "unusable");
    }
    assert!(store.objects(CELL, "2026-01-01").await.is_err(), "no empty list");
    assert!(store.cells().await.is_err(), "no empty list");
    assert!(!path.exists());
}

#[tokio::test]
async fn an_object_without_its_key_is_not_taken_for_damaged() {
    let (_directory, store) = directory();
    let (_, sealed) = sample(&ring(&[OLD]));
    store.put(&sealed, true).await.expect("a put");
    let listed = listed(&store, &sealed).await;
    let other = OLD.replace("AAEC", "CCEC");
    for keys in [KeyRing::default(), ring(&[NEW]), ring(&[&*other])] {
        let object = store.object(&sealed.name, &keys).await.map(|_| ());
        assert_eq!(object.expect_err("no key").kind(), "no_key");
        let tail = store.tail(&listed, &keys).await.map(|_| ());
        assert_eq!(tail.expect_err("no key").kind(), "no_key");
    }
}

#[tokio::test]
async fn an_object_that_is_too_large_is_refused_before_it_is_read() {
    let (directory, store) = directory();
    let (_, sealed) = sample(&KeyRing::default());
    store.put(&sealed, true).await.expect("a put");
    let file = directory.path().join(sealed.name.to_string());
    let file = std::fs::File::options().write(true).open(file).expect("a file");
    // Sparse: it takes no space.
    file.set_len((256 << 20) + 1).expect("make it longer");
    let object = store.object(&sealed.name, &KeyRing::default()).await.map(|_| ());
    let problem = format!("{:?}", object.expect_err("it is too large"));
    assert!(problem.contains("256 MiB"), "{problem}");
    let objects = store.objects(CELL, "2026-01-01").await.expect("a list");
    let tail = store.tail(&objects[0], &KeyRing::default()).await.map(|_| ());
    assert_eq!(tail.expect_err("it is too large").kind(), "corrupt");
}

/// Entries and first bytes of the packs between two entries, and the number of objects that were read for them.
async fn read(
    store: &ArchiveStore,
    keys: KeyRing,
    after: StreamId,
    through: StreamId,
) -> (Vec<(StreamId, Bytes)>, u64) {
    let objects = store.objects(CELL, "2026-01-01").await.expect("a list");
    let store = Arc::new(store.clone());
    let mut reader = ArchiveReader::new(store, Arc::new(keys), objects, after, through);
    let mut found = Vec::new();
    while let Some(pack) = reader.next().await.expect("sound objects") {
        assert_eq!(pack.is_corrupt, !pack.bytes.starts_with(b"SPWY"));
        found.push((pack.entry, pack.bytes));
    }
    (found, reader.objects_read())
}

#[tokio::test]
async fn what_a_cut_off_erasure_left_is_given_once_and_without_what_is_erased_in_either() {
    let keys = KeyRing::default();
    let (_directory, store) = directory();
    let packs: Vec<_> = (1..9).map(|ms| (id(ms, 0), pack(ms * 10..ms * 10 + 3, 40))).collect();
    let erased = |meant: &[u32]| {
        let one = |(entry, bytes): &(StreamId, Bytes)| {
            let pack = Pack::decode(bytes).expect("a pack");
            let is_meant = |index: u32| entry.ms.is_multiple_of(2) && meant.contains(&index);
            (*entry, Bytes::copy_from_slice(Packer::new().erase(&pack, is_meant)))
        };
        packs.iter().map(one).collect::<Vec<_>>()
    };
    for packs in [packs.clone(), erased(&[1]), erased(&[2])] {
        store.put(&object(&packs, &keys), true).await.expect("a put");
    }
    let (found, objects) = read(&store, keys, id(0, 0), id(99, 0)).await;
    assert_eq!(found, erased(&[1, 2]));
    assert_eq!(objects, 1, "no object is read again for each pack");
}

#[tokio::test]
async fn packs_of_a_range_are_read_once_in_order_from_the_objects_that_hold_them() {
    let (_directory, store) = directory();
    let one = |ms| (id(ms, 0), pack(ms..ms + 1, 40));
    let corrupt = (id(25, 0), Bytes::from_static(b"no pack at all"));
    // The second one overlaps with the first, and holds another pack under the same entry.
    let other = (id(12, 0), pack(90..92, 40));
    for packs in [
        vec![one(1), one(10), one(12)],
        vec![one(10), other.clone(), one(14)],
        vec![one(20), corrupt.clone()],
        vec![one(30), one(40)],
    ] {
        store.put(&object(&packs, &KeyRing::default()), true).await.expect("a put");
    }
    let whole = read(&store, KeyRing::default(), id(0, 0), id(99, 0)).await;
    let mut twelfth = vec![one(12), other];
    twelfth.sort_by_key(|(_, pack)| pack.len());
    let expected = [
        vec![one(1), one(10)],
        twelfth.clone(),
        vec![one(14), one(20), corrupt.clone(), one(30), one(40)],
    ];
    assert_eq!(whole.0, expected.concat());
    assert!((4..=6).contains(&whole.1), "{} objects were read", whole.1);
    // The first bound is left out, the last one is not.
    let part = read(&store, KeyRing::default(), id(20, 0), id(30, 0)).await;
    assert_eq!(part, (vec![corrupt, one(30)], 2));
    let none = read(&store, KeyRing::default(), id(40, 0), id(99, 0)).await;
    assert_eq!(none, (Vec::new(), 0));
}

#[tokio::test]
async fn a_reader_leaves_out_nothing_that_it_cannot_read() {
    let (directory, store) = directory();
    let (_, sealed) = sample(&ring(&[OLD]));
    store.put(&sealed, true).await.expect("a put");
    let first = async |keys: KeyRing| {
        let objects = store.objects(CELL, "2026-01-01").await.expect("a list");
        let store = Arc::new(store.clone());
        let mut reader =
            ArchiveReader::new(store, Arc::new(keys), objects, StreamId::ZERO, id(99, 0));
        reader.next().await.map(|pack| pack.map(|pack| pack.entry))
    };
    assert_eq!(first(ring(&[OLD])).await.expect("sound"), Some(id(1, 0)));
    assert_eq!(first(ring(&[NEW])).await.expect_err("no key").kind(), "no_key");
    let file = directory.path().join(sealed.name.to_string());
    let mut bytes = std::fs::read(&file).expect("an object");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&file, bytes).expect("damage it");
    assert_eq!(first(ring(&[OLD])).await.expect_err("damaged").kind(), "corrupt");
}

#[tokio::test]
async fn a_file_that_cannot_be_read_is_an_error_of_that_file() {
    let (directory, store) = directory();
    let keys = KeyRing::default();
    let (_, sealed) = sample(&keys);
    let missing = store.object(&sealed.name, &keys).await.expect_err("nothing is there");
    assert!(!store.is_file_error(&missing).await);
    let source = Box::new(std::io::Error::other("damaged disk"));
    let generic = object_store::Error::Generic { store: "LocalFileSystem", source };
    let error = StoreError::from(generic);
    assert!(store.is_file_error(&error).await);
    directory.close().expect("remove it");
    assert!(!store.is_file_error(&error).await, "its disk is not mounted");
}
