//! The log under crashes, damage and a failing disk.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::disk::{Disk, DiskFile, RealDisk};
use crate::{Directory, Limits, LogReader, SegmentIndex, WriteError, Writer, count, open};
use proptest::prelude::*;

mod opening;

const LIMITS: Limits = Limits { bytes_max: 1 << 20, segment_bytes: 4096 };

/// Fault of the next calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// Takes this number of bytes, then has no room.
    FullAfter(usize),
    /// Takes one byte at a time.
    Short,
    /// The sync fails, and everything written since the last one is lost.
    Sync,
    /// No file can be created or written.
    Broken,
    /// The names in the directory can't be synced, and this file can't be removed, or it can.
    Names { stay: bool },
}

type Faults = Arc<Mutex<Option<Fault>>>;

struct FaultyDisk(Faults);

struct FaultyFile {
    file: Box<dyn DiskFile>,
    faults: Faults,
}

impl Disk for FaultyDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        if *self.0.lock().unwrap() == Some(Fault::Broken) {
            return Err(io::Error::from_raw_os_error(5));
        }
        let file = RealDisk.create(path)?;
        Ok(Box::new(FaultyFile { file, faults: self.0.clone() }))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        match *self.0.lock().unwrap() {
            Some(Fault::Names { stay: true }) => Err(io::Error::from_raw_os_error(5)),
            _ => RealDisk.remove(path),
        }
    }

    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        match *self.0.lock().unwrap() {
            Some(Fault::Names { .. }) => Err(io::Error::from_raw_os_error(5)),
            _ => RealDisk.sync_directory(directory),
        }
    }
}

impl DiskFile for FaultyFile {
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let mut fault = self.faults.lock().unwrap();
        match &mut *fault {
            Some(Fault::Broken) => Err(io::Error::from_raw_os_error(5)),
            Some(Fault::FullAfter(0)) => Err(io::ErrorKind::StorageFull.into()),
            Some(Fault::FullAfter(left)) => {
                let taken = bytes.len().min(*left);
                *left -= taken;
                self.file.write_at(&bytes[..taken], offset)
            }
            Some(Fault::Short) => self.file.write_at(&bytes[..1], offset),
            Some(Fault::Sync | Fault::Names { .. }) | None => self.file.write_at(bytes, offset),
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        match *self.faults.lock().unwrap() {
            Some(Fault::Sync) => Err(io::Error::from_raw_os_error(5)),
            _ => self.file.sync(),
        }
    }

    fn truncate(&mut self, end: u64) -> io::Result<()> {
        self.file.truncate(end)
    }
}

/// Clock that is shared by processes that follow one another.
static CLOCK: AtomicU64 = AtomicU64::new(1000);

fn opened(path: &Path) -> (Arc<SegmentIndex>, Writer, Faults) {
    let faults = Faults::default();
    let now = CLOCK.fetch_add(1000, Ordering::Relaxed);
    let directory = Directory::take(path).unwrap();
    let (index, writer) =
        open(directory, Box::new(FaultyDisk(faults.clone())), LIMITS, now).unwrap();
    (index, writer, faults)
}

fn pack(number: usize) -> Vec<u8> {
    format!("pack {number} {}", "x".repeat(number % 300)).into_bytes()
}

fn write(writer: &mut Writer, numbers: impl IntoIterator<Item = usize>) {
    for number in numbers {
        writer.append(&[(pack(number), 1)]).unwrap();
    }
}

/// Returns all packs, and marks each as restored when it is read.
fn restored(index: &Arc<SegmentIndex>, skip_through: u64) -> Vec<Vec<u8>> {
    let mut reader = LogReader::after(index.clone(), skip_through);
    let mut packs = Vec::new();
    loop {
        let chunk = reader.read(1000, 1000).unwrap();
        reader.restored(&chunk);
        if chunk.records.is_empty() {
            assert!(reader.pass_read());
            return packs;
        }
        packs.extend(chunk.records.into_iter().map(|record| record.pack));
    }
}

fn packs(numbers: impl IntoIterator<Item = usize>) -> Vec<Vec<u8>> {
    numbers.into_iter().map(pack).collect()
}

/// Segments with records, oldest first.
fn files(directory: &Path, ending: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = entries
        .filter(|path| path.to_string_lossy().ends_with(ending))
        .filter(|path| fs::metadata(path).unwrap().len() > 40)
        .collect();
    files.sort();
    files
}

fn flip(path: &Path, offset: u64) {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 0xff], offset).unwrap();
}

#[test]
fn what_goes_in_comes_out_in_order_over_segments_and_processes() {
    let place = tempfile::tempdir().unwrap();
    let (index, mut writer, _) = opened(place.path());
    write(&mut writer, 0..100);
    assert!(files(place.path(), ".spill").len() > 2);
    assert_eq!(index.webhooks(), 100);
    drop(writer);
    let (index, mut writer, _) = opened(place.path());
    assert!(index.holds_any() && index.webhooks() < 100, "the newest alone was read");
    count(&index);
    assert_eq!(index.webhooks(), 100);
    write(&mut writer, 100..120);
    assert_eq!(restored(&index, 0), packs(0..120));
    assert_eq!(index.webhooks(), 0);
    assert!(!index.holds_any());
    // A Redis that came back with older data is restored again. If that is interrupted, the claim
    // stays.
    index.again_after(index.floor());
    assert!(index.holds_any());
    index.again_after(index.last());
    assert!(index.holds_any(), "what waits is not restored by that");
    assert_eq!(index.damages(), 0);
    // A completely restored segment is gone; the newest number stays.
    let last = index.last();
    writer.rotate().unwrap();
    assert!(restored(&index, last).is_empty());
    assert!(files(place.path(), ".spill").is_empty());
    drop(writer);
    assert_eq!(opened(place.path()).0.last(), last);
}

#[test]
fn what_was_restored_is_passed_over() {
    let place = tempfile::tempdir().unwrap();
    let (index, mut writer, _) = opened(place.path());
    write(&mut writer, 0..100);
    let mut reader = LogReader::after(index, 0);
    let numbers: Vec<u64> = std::iter::from_fn(|| reader.read(1000, 1).unwrap().records.pop())
        .map(|record| record.number)
        .collect();
    drop((reader, writer));
    for through in [0, 1, 50, 99, 100] {
        let restored_through = if through == 0 { 0 } else { numbers[through - 1] };
        let directory = tempfile::tempdir().unwrap();
        for name in fs::read_dir(place.path()).unwrap() {
            let path = name.unwrap().path();
            fs::copy(&path, directory.path().join(path.file_name().unwrap())).unwrap();
        }
        let (index, _writer, _) = opened(directory.path());
        assert_eq!(restored(&index, restored_through), packs(through..100), "after {through}");
        assert_eq!(index.damages(), 0);
    }
}

#[test]
fn damage_to_what_was_restored_leads_past_nothing_else() {
    let record_bytes = 32 + pack(1).len() as u32;
    // Lengths that end in other records, at their starts, at the end and beyond it.
    for longer in [1, 32, record_bytes, 3 * record_bytes, 6 * record_bytes, 1 << 20] {
        let place = tempfile::tempdir().unwrap();
        let (index, mut writer, _) = opened(place.path());
        write(&mut writer, [1; 8]);
        let first = index.last() - 7;
        // The length of the second record, of three that are restored.
        let offset = 40 + u64::from(record_bytes) + 8;
        let length = pack(1).len() as u32 + longer;
        let file = OpenOptions::new().write(true).open(&files(place.path(), ".spill")[0]).unwrap();
        file.write_all_at(&length.to_le_bytes(), offset).unwrap();
        assert_eq!(restored(&index, first + 2), packs([1; 5]), "longer by {longer}");
    }
}

#[test]
fn a_reader_follows_a_writer() {
    let place = tempfile::tempdir().unwrap();
    let (index, mut writer, _) = opened(place.path());
    let mut reader = LogReader::after(index, 0);
    assert!(reader.pass_read());
    for number in 0..200 {
        write(&mut writer, [number]);
        assert!(!reader.pass_read());
        let chunk = reader.read(1000, 1).unwrap();
        assert_eq!(chunk.records[0].pack, pack(number));
        reader.restored(&chunk);
        assert!(reader.read(1000, 1).unwrap().records.is_empty() && reader.pass_read());
        if number % 7 == 0 {
            writer.rotate().unwrap();
        }
    }
    assert!(files(place.path(), ".spill").len() <= 1);
}

#[test]
fn damage_in_the_middle_costs_what_is_damaged_and_nothing_else() {
    let place = tempfile::tempdir().unwrap();
    let (index, mut writer, _) = opened(place.path());
    write(&mut writer, 0..100);
    drop((index, writer));
    let all = files(place.path(), ".spill");
    // The head of the first record, the head of a file, and a byte in the last file.
    flip(&all[0], 40 + 9);
    flip(&all[1], 20);
    flip(&all[2], 40 + 32 + 3);
    let (index, mut writer, _) = opened(place.path());
    write(&mut writer, 100..110);
    let came = restored(&index, 0);
    assert_eq!(came.len(), 108);
    let mut expected = packs(0..110);
    expected.retain(|pack| came.contains(pack));
    assert_eq!(came, expected, "out of order");
    assert_eq!(index.damages(), 2);
    assert_eq!(files(place.path(), ".damaged").len(), 3, "kept for a person to look at");
}

#[test]
fn damage_in_the_newest_segment_is_no_torn_tail() {
    let place = tempfile::tempdir().unwrap();
    let (index, mut writer, _) = opened(place.path());
    write(&mut writer, 0..10);
    drop((index, writer));
    flip(&files(place.path(), ".spill")[0], 40 + 32 + 1);
    let (index, _writer, _) = opened(place.path());
    assert_eq!(restored(&index, 0), packs(1..10));
    assert_eq!(index.damages(), 1);
}

#[test]
fn a_segment_that_is_gone_is_told() {
    let place = tempfile::tempdir().unwrap();
    let (index, mut writer, _) = opened(place.path());
    write(&mut writer, 0..100);
    drop((index, writer));
    fs::remove_file(&files(place.path(), ".spill")[1]).unwrap();
    let (index, _writer, _) = opened(place.path());
    assert!(restored(&index, 0).len() < 100);
    assert_eq!(index.damages(), 1);
}

#[test]
fn the_limit_is_kept_and_room_is_used_again() {
    let place = tempfile::tempdir().unwrap();
    let (index, mut writer, _) = opened(place.path());
    let mut count = 0;
    while writer.append(&[(vec![7; 10_000], 1)]).is_ok() {
        count += 1;
    }
    assert!(matches!(writer.append(&[(vec![7; 10_000], 1)]), Err(WriteError::Limit)));
    assert!(index.bytes() <= LIMITS.bytes_max && index.bytes() > LIMITS.bytes_max - 11_000);
    assert_eq!(restored(&index, 0).len(), count);
    writer.append(&[(vec![7; 10_000], 1)]).unwrap();
}

#[test]
fn a_disk_that_takes_little_at_a_time_is_written_to_whole() {
    let place = tempfile::tempdir().unwrap();
    let (index, mut writer, faults) = opened(place.path());
    *faults.lock().unwrap() = Some(Fault::Short);
    write(&mut writer, 0..20);
    assert_eq!(restored(&index, 0), packs(0..20));
}

#[test]
fn a_full_disk_takes_nothing_back_of_what_was_written() {
    let place = tempfile::tempdir().unwrap();
    let (index, mut writer, faults) = opened(place.path());
    write(&mut writer, 0..5);
    for room in [0, 1, 31, 32, 33, 36] {
        *faults.lock().unwrap() = Some(Fault::FullAfter(room));
        assert!(matches!(
            writer.append(&[(pack(400), 1), (pack(401), 1)]),
            Err(WriteError::Full(_))
        ));
    }
    *faults.lock().unwrap() = None;
    write(&mut writer, 5..8);
    drop((index, writer));
    let (index, _writer, _) = opened(place.path());
    assert_eq!(restored(&index, 0), packs(0..8));
    assert_eq!(index.damages(), 0);
}

#[test]
fn a_failed_sync_is_not_trusted_and_not_tried_again() {
    let place = tempfile::tempdir().unwrap();
    let (index, mut writer, faults) = opened(place.path());
    write(&mut writer, 0..5);
    *faults.lock().unwrap() = Some(Fault::Sync);
    assert!(matches!(writer.append(&[(pack(9), 1)]), Err(WriteError::Unknown(_))));
    // The next segment cannot even be created.
    assert!(matches!(writer.append(&[(pack(9), 1)]), Err(WriteError::Failed(_))));
    *faults.lock().unwrap() = Some(Fault::Broken);
    assert!(matches!(writer.append(&[(pack(9), 1)]), Err(WriteError::Failed(_))));
    *faults.lock().unwrap() = None;
    write(&mut writer, 5..8);
    assert_eq!(files(place.path(), ".spill").len(), 2, "it goes on in another segment");
    drop((index, writer));
    let (index, _writer, _) = opened(place.path());
    assert_eq!(restored(&index, 0), packs(0..8));
    assert_eq!(index.damages(), 0);
}

#[test]
fn nothing_is_added_to_a_segment_behind_which_another_may_lie() {
    // The file of the newer one is still there, or is there again after a power cut.
    for stay in [true, false] {
        let directory = tempfile::tempdir().unwrap();
        let (index, mut writer, faults) = opened(directory.path());
        write(&mut writer, 0..5);
        *faults.lock().unwrap() = Some(Fault::Names { stay });
        assert!(matches!(writer.rotate(), Err(WriteError::Failed(_))));
        assert!(matches!(writer.append(&[(pack(9), 1)]), Err(WriteError::Failed(_))));
        *faults.lock().unwrap() = None;
        let before = index.last();
        write(&mut writer, 5..8);
        drop(writer);
        let (index, _writer, _) = opened(directory.path());
        assert_eq!(restored(&index, before), packs(5..8));
    }
}

#[test]
fn a_disk_that_took_nothing_is_tried_without_a_webhook() {
    let place = tempfile::tempdir().unwrap();
    let (index, mut writer, faults) = opened(place.path());
    write(&mut writer, 0..3);
    for fault in [Fault::FullAfter(100), Fault::Sync, Fault::Broken] {
        *faults.lock().unwrap() = Some(fault);
        writer.append(&[(vec![7; 3000], 1)]).unwrap_err();
        let refused = writer.probe().unwrap_err();
        let is_full = matches!(refused, WriteError::Full(_));
        assert_eq!(is_full, matches!(fault, Fault::FullAfter(_)), "{refused:?}");
        *faults.lock().unwrap() = None;
        writer.probe().unwrap();
    }
    assert!(!place.path().join("probe").exists());
    assert_eq!(restored(&index, 0), packs(0..3), "nothing was invented");
    let last = index.last();
    write(&mut writer, 3..5);
    assert_eq!(restored(&index, last), packs(3..5));
}

#[test]
fn a_limit_that_was_reached_is_one_until_as_much_fits_as_was_refused() {
    let place = tempfile::tempdir().unwrap();
    let (index, mut writer, _) = opened(place.path());
    while writer.append(&[(vec![7; 4000], 1)]).is_ok() {}
    assert!(matches!(writer.probe(), Err(WriteError::Limit)));
    let mut reader = LogReader::after(index, 0);
    let first = reader.read(1, 1).unwrap();
    reader.restored(&first);
    assert!(matches!(writer.probe(), Err(WriteError::Limit)), "its segment is not free yet");
    for _ in 0..4 {
        let chunk = reader.read(1, 1).unwrap();
        reader.restored(&chunk);
    }
    writer.probe().unwrap();
    writer.append(&[(vec![7; 4000], 1)]).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// A crash may cut the newest file off at any byte: everything that was synced before is kept.
    #[test]
    fn a_torn_tail_is_cut_wherever_it_is_torn(
        groups in prop::collection::vec(1usize..4, 1..8),
        cut in 0.0f64..1.0,
        garbage in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let place = tempfile::tempdir().unwrap();
        let (index, mut writer, _) = opened(place.path());
        let mut ends = vec![(index.bytes(), 0)];
        let mut count = 0;
        for group in groups {
            let all: Vec<_> = (count..count + group).map(|number| (pack(number), 1)).collect();
            for one in all {
                writer.append(&[one]).unwrap();
                count += 1;
                ends.push((index.bytes(), count));
            }
        }
        drop((index, writer));
        let path = files(place.path(), ".spill").remove(0);
        let length = fs::metadata(&path).unwrap().len();
        let cut = 40 + ((length - 40) as f64 * cut) as u64;
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(cut).unwrap();
        file.write_all_at(&garbage, cut).unwrap();
        let whole = ends.iter().rev().find(|(end, _)| *end <= cut).map_or(0, |(_, count)| *count);
        for _ in 0..2 {
            let (index, _writer, _) = opened(place.path());
            crate::count(&index);
            prop_assert_eq!(index.webhooks(), whole as u64);
        }
        let (index, mut writer, _) = opened(place.path());
        writer.append(&[(pack(77), 1)]).unwrap();
        let mut expected = packs(0..whole);
        expected.push(pack(77));
        prop_assert_eq!(restored(&index, 0), expected);
        prop_assert_eq!(index.damages(), 0);
    }

    /// With any bytes in a file, nothing panics, no pack is invented, and the order is kept.
    #[test]
    fn any_damage_is_survived(
        flips in prop::collection::vec((0.0f64..1.0, 0usize..3), 1..6),
    ) {
        let place = tempfile::tempdir().unwrap();
        let (index, mut writer, _) = opened(place.path());
        write(&mut writer, 0..60);
        drop((index, writer));
        let all = files(place.path(), ".spill");
        for (where_, file) in flips {
            let path = &all[file % all.len()];
            let length = fs::metadata(path).unwrap().len();
            // The version is not changed: an unknown one is rightly refused.
            let offset = (length as f64 * where_) as u64;
            if !(8..40).contains(&offset) {
                flip(path, offset.min(length - 1));
            }
        }
        let (index, _writer, _) = opened(place.path());
        let came = restored(&index, 0);
        let mut expected = packs(0..60);
        expected.retain(|pack| came.contains(pack));
        prop_assert_eq!(came, expected);
    }
}
