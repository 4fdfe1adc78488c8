//! Objects that are written again without some of their webhooks.

use spillway_webhook::WebhookId;
use spillway_webhook::pack::{Pack, View};
use spillway_webhook::shopify::Headers;

use super::*;
use crate::erase::{self, MeantWebhooks};

/// True for the webhook about this product.
fn about(product: &'static str) -> impl FnMut(WebhookId, &View<'_>) -> bool {
    move |_, view| view.shopify("product-id") == Some(product.as_bytes())
}

fn opened(sealed: &SealedObject, keys: &KeyRing) -> ArchiveObject {
    ArchiveObject::open(whole(sealed), keys).expect("our own object")
}

#[test]
fn an_erased_webhook_leaves_its_place_and_nothing_else() {
    for keys in [KeyRing::default(), ring(&[NEW, OLD])] {
        let (packs, sealed) = sample(&keys);
        let old = opened(&sealed, &keys);
        let meant = MeantWebhooks::find(&old, about("2"), |bytes| bytes == b"no pack at all");
        let meant = meant.expect("packs");
        assert_eq!((meant.count(), meant.corrupt), (1, 1));
        let new = erase::without(&old, &sealed.name, &keys, &meant).expect("an object");
        assert_eq!(
            (new.name.cell, new.name.first, new.name.last, new.name.webhooks),
            (CELL, id(1, 0), id(9, 0), 3)
        );
        assert_ne!(new.name.tag, sealed.name.tag);
        let again = erase::without(&old, &sealed.name, &keys, &meant).expect("an object");
        assert_eq!(again.name, new.name, "the same erasure gives the same name");
        let read = opened(&new, &keys);
        assert_eq!(read.tail.header.after, old.tail.header.after);
        assert_eq!(read.tail.header.key.is_some(), !keys.is_empty());
        for untouched in [1, 2] {
            assert_eq!(read.pack(untouched).as_ref(), Ok(&packs[untouched].1));
        }
        let [before, after] = [&old, &read].map(|object| {
            Pack::decode(&object.pack(0).expect("a pack")).expect("it can be decoded")
        });
        assert_eq!(after.record(0).headers, before.record(0).headers);
        assert_eq!(after.record(0).body, before.record(0).body);
        assert!(after.view(1).is_erased() && !after.view(0).is_erased());
        let index = &read.tail.index;
        assert!(index.shops.iter().all(|(shop, _)| shop != b"shop-2.myshopify.com"));
        assert!(!index.webhook_ids.may_hold(webhook_id_hash(b"id-2")));
        assert!(!index.resources.may_hold(resource_hash(b"shop-2.myshopify.com", b"product/2")));
        assert!(index.webhook_ids.may_hold(webhook_id_hash(b"id-1")));
        assert_eq!((index.webhooks(), index.corrupt_packs()), (3, 1));
        let differing = erase::differing_entries(&[&old.tail.index, index]);
        assert_eq!(differing, [id(1, 0)]);
        assert_eq!(erase::supersedes(&read, &old), Ok(true));
        assert_eq!(erase::supersedes(&old, &read), Ok(false));
        assert_eq!(erase::supersedes(&old, &old), Ok(false), "nothing was erased");
        let meant = MeantWebhooks::find(&read, about("2"), |_| false).expect("packs");
        assert_eq!(meant, MeantWebhooks::default(), "nothing is erased twice");
    }
}

#[test]
fn an_object_of_which_all_is_erased_is_still_an_object() {
    let keys = KeyRing::default();
    let sealed = object(&[(id(1, 0), pack(1..4, 40))], &keys);
    let old = opened(&sealed, &keys);
    let meant = MeantWebhooks::find(&old, |_, _| true, |_| true).expect("packs");
    let new = erase::without(&old, &sealed.name, &keys, &meant).expect("an object");
    let read = opened(&new, &keys);
    assert!(read.tail.index.shops.is_empty() && read.tail.index.topics.is_empty());
    assert_eq!(read.tail.index.webhooks(), 3);
}

#[tokio::test]
async fn an_object_is_replaced_also_after_it_was_cut_off_at_any_moment() {
    for keys in [KeyRing::default(), ring(&[NEW])] {
        let (directory, store) = directory();
        let (_, sealed) = sample(&keys);
        let old = opened(&sealed, &keys);
        let meant = MeantWebhooks::find(&old, about("1"), |_| false).expect("packs");
        let new = || erase::without(&old, &sealed.name, &keys, &meant).expect("an object");
        store.put(&sealed, true).await.expect("a put");
        let first = new();
        erase::replace(&store, &keys, &sealed.name, &first).await.expect("it is replaced");
        listed(&store, &first).await;
        // Killed between the put and the deletion.
        store.put(&sealed, true).await.expect("a put");
        erase::replace(&store, &keys, &sealed.name, &new()).await.expect("it is replaced");
        listed(&store, &first).await;
        // What is there is not written over: its bytes, with another key, stay.
        let path = directory.path().join(first.name.to_string());
        assert_eq!(std::fs::read(&path).expect("its bytes"), whole(&first));
        // A file of that name that is damaged is written again.
        std::fs::write(&path, "half").expect("damage it");
        store.put(&sealed, true).await.expect("a put");
        erase::replace(&store, &keys, &sealed.name, &new()).await.expect("it is replaced");
        listed(&store, &first).await;
        assert!(erase::replace(&store, &keys, &first.name, &first).await.is_err(), "itself");
        listed(&store, &first).await;
    }
}
