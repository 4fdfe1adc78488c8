//! Objects that were written under another name, because a damaged one cannot be written over.

use super::*;

#[tokio::test]
async fn of_a_damaged_object_and_the_one_in_its_place_only_the_latter_counts() {
    let keys = KeyRing::default();
    let (directory, store) = directory();
    let packs = vec![(id(1, 0), pack(1..3, 40)), (id(2, 0), pack(3..5, 40))];
    let first = object(&packs, &keys);
    store.put(&first, true).await.expect("a put");
    let path = directory.path().join(first.name.to_string());
    std::fs::write(&path, "half").expect("damage it");
    let mut second = first.clone();
    second.name = first.name.next_generation().expect("a name");
    assert_eq!(store.put(&second, true).await.expect("a put"), PutOutcome::Written);
    let listed = store.objects(CELL, "2026-01-01").await.expect("a list");
    assert_eq!(listed.iter().map(|object| object.name).collect::<Vec<_>>(), [second.name]);
    assert_eq!(store.replaced(CELL, "2026-01-01").await.expect("a list"), [first.name]);
    let newest = store.newest_before(CELL, id(99, 0)).await.expect("a list");
    assert_eq!(newest.map(|object| object.name), Some(second.name));
    assert_eq!(read(&store, keys, id(0, 0), id(99, 0)).await, (packs, 1));

    // It may be damaged, too.
    let mut third = second.clone();
    third.name = second.name.next_generation().expect("a name");
    assert_eq!(store.put(&third, true).await.expect("a put"), PutOutcome::Written);
    let listed = store.objects(CELL, "2026-01-01").await.expect("a list");
    assert_eq!(listed.iter().map(|object| object.name).collect::<Vec<_>>(), [third.name]);
    let replaced = store.replaced(CELL, "2026-01-01").await.expect("a list");
    assert_eq!(replaced, [first.name, second.name]);

    // What was damaged holds personal data, too: it goes with the object that counts.
    store.delete(&third.name).await.expect("it is deleted");
    assert!(!path.exists(), "the damaged one");
    assert!(!directory.path().join(second.name.to_string()).exists());
}

#[tokio::test]
async fn objects_that_overlap_otherwise_are_all_there() {
    let keys = KeyRing::default();
    let (_directory, store) = directory();
    let mut names = Vec::new();
    for packs in [vec![(id(1, 0), pack(1..3, 40))], vec![(id(1, 0), pack(7..9, 40))]] {
        let mut sealed = object(&packs, &keys);
        if names.is_empty() {
            sealed.name = sealed.name.next_generation().expect("a name");
        }
        store.put(&sealed, true).await.expect("a put");
        names.push(sealed.name);
    }
    names.sort_unstable();
    let listed = store.objects(CELL, "2026-01-01").await.expect("a list");
    assert_eq!(listed.iter().map(|object| object.name).collect::<Vec<_>>(), names);
}
