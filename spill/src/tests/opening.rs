//! A start reads the newest segment and the heads of the others, and no more.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;

use super::{Fault, Faults, FaultyDisk, LIMITS, files, opened, pack, packs, restored, write};
use crate::disk::RealDisk;
use crate::{Directory, LogReader, WriteError, count, open};

#[test]
fn a_start_reads_the_newest_segment_and_of_the_others_their_heads() {
    let place = tempfile::tempdir().unwrap();
    let (index, mut writer, _) = opened(place.path());
    write(&mut writer, 0..100);
    drop((index, writer));
    let all = files(place.path(), ".spill");
    // No record of the older segments can be read, and the start does not notice.
    for path in &all[..all.len() - 1] {
        OpenOptions::new().write(true).open(path).unwrap().write_all_at(&[0; 2000], 40).unwrap();
    }
    let (index, mut writer, _) = opened(place.path());
    assert_eq!(index.damages(), 0);
    count(&index);
    write(&mut writer, 100..110);
    let came = restored(&index, 0);
    let mut expected = packs(0..110);
    expected.retain(|pack| came.contains(pack));
    assert_eq!(came, expected, "out of order");
    assert_eq!(came.last(), Some(&pack(109)));
    assert_eq!(index.damages() as usize, all.len() - 1, "each is told of when it is read");
    assert_eq!(files(place.path(), ".damaged").len(), all.len() - 1);
}

#[test]
fn what_is_restored_while_it_is_counted_is_not_counted_as_waiting() {
    let place = tempfile::tempdir().unwrap();
    let (index, mut writer, _) = opened(place.path());
    write(&mut writer, 0..100);
    drop((index, writer));
    let (index, _writer, _) = opened(place.path());
    let mut reader = LogReader::after(index.clone(), 0);
    let chunk = reader.read(30, usize::MAX).unwrap();
    reader.restored(&chunk);
    count(&index);
    assert_eq!(index.webhooks(), 70);
    // Asked again, as after a missing answer.
    LogReader::after(index.clone(), 0).read(30, usize::MAX).unwrap();
    assert_eq!(index.webhooks(), 70);
    assert_eq!(restored(&index, chunk.last().unwrap()).len(), 70);
    assert!(!index.holds_any());
}

#[test]
fn what_was_refused_at_the_end_of_an_older_segment_is_no_damage() {
    let place = tempfile::tempdir().unwrap();
    let (index, mut writer, _) = opened(place.path());
    write(&mut writer, 0..100);
    drop((index, writer));
    let older = &files(place.path(), ".spill")[0];
    // A refused group leaves these bytes if not even the truncation reaches the disk.
    let end = fs::metadata(older).unwrap().len();
    OpenOptions::new().write(true).open(older).unwrap().write_all_at(b"SPRC half", end).unwrap();
    let (index, _writer, _) = opened(place.path());
    assert_eq!(restored(&index, 0), packs(0..100));
    assert_eq!(index.damages(), 0);
}

#[test]
fn a_segment_that_was_being_made_leaves_the_one_before_it_the_newest() {
    let place = tempfile::tempdir().unwrap();
    let (index, mut writer, _) = opened(place.path());
    write(&mut writer, 0..100);
    drop((index, writer));
    let newest = files(place.path(), ".spill").pop().unwrap();
    let end = fs::metadata(&newest).unwrap().len();
    OpenOptions::new().write(true).open(&newest).unwrap().write_all_at(b"torn", end).unwrap();
    fs::write(place.path().join("ffffffffff.spill"), b"no name of ours").unwrap();
    fs::write(place.path().join("00ffffffffffffff.spill"), b"SPWYSP").unwrap();
    let (index, _writer, _) = opened(place.path());
    assert_eq!(fs::metadata(&newest).unwrap().len(), end, "its torn end is cut");
    assert_eq!(restored(&index, 0), packs(0..100));
    assert_eq!(index.damages(), 0);
}

#[test]
fn a_disk_that_is_full_at_start_is_still_read() {
    let place = tempfile::tempdir().unwrap();
    let (index, mut writer, _) = opened(place.path());
    write(&mut writer, 0..5);
    drop((index, writer));
    let faults = Faults::default();
    *faults.lock().unwrap() = Some(Fault::FullAfter(3));
    let directory = Directory::take(place.path()).unwrap();
    let disk = Box::new(FaultyDisk(faults.clone()));
    let (index, mut writer) = open(directory, disk, LIMITS, 1).unwrap();
    assert!(matches!(writer.append(&[(pack(9), 1)]), Err(WriteError::Full(_))));
    assert_eq!(restored(&index, 0), packs(0..5));
    *faults.lock().unwrap() = None;
    let last = index.last();
    write(&mut writer, 5..8);
    assert_eq!(restored(&index, last), packs(5..8));
}

#[test]
fn another_logs_segment_is_refused() {
    let one = tempfile::tempdir().unwrap();
    let other = tempfile::tempdir().unwrap();
    let (_, mut writer, _) = opened(one.path());
    write(&mut writer, 0..3);
    drop(writer);
    drop(opened(other.path()));
    let from = &files(one.path(), ".spill")[0];
    fs::copy(from, other.path().join(from.file_name().unwrap())).unwrap();
    let directory = Directory::take(other.path()).unwrap();
    let refused = open(directory, Box::new(RealDisk), LIMITS, 1).err().unwrap();
    assert!(refused.to_string().contains("another log"), "{refused}");
}
