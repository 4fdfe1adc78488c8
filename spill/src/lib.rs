//! A log on the receiver's own disk, for times in which Redis takes nothing. Packs come out in the
//! order in which they went in.
//!
//! The path of a pack: [`writer`] (writes a group of packs with one sync) → [`segment`] (the files
//! that hold them) → [`reader`] (reads them back, and continues after damage) → [`index`] (frees
//! what is restored to the queue). Other modules: [`record`] (the format), [`mod@open`] (recovery
//! after a crash), [`mod@count`] (number of webhooks), [`directory`] (lock and id), [`disk`] (the
//! writing side of the file system, so that tests can make it fail).
//!
//! The code calls a pack restored when it is restored to Redis and Redis confirmed that.
//!
//! Invariants: A group is reported as written only after its sync. A record that was reported is
//! read back, or an error names the place where it lay. A number is never used twice. This crate
//! knows neither Redis nor HTTP, and deletes nothing that was not reported as restored.

pub mod count;
pub mod directory;
pub mod disk;
pub mod index;
pub mod open;
pub mod reader;
pub mod record;
pub mod scan;
pub mod segment;
pub mod writer;

pub use count::count;
pub use directory::{Directory, DirectoryError};
pub use index::SegmentIndex;
pub use open::open;
pub use reader::{LogReader, RecordBatch};
pub use writer::{Limits, WriteError, Writer};

#[cfg(test)]
mod tests;
