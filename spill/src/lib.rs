//! A log on the receiver's own disk, for the time in which Redis takes nothing: packs go in, and come
//! out in the same order.
//!
//! The path of a pack: [`writer`] (a group of packs, one sync) → [`segment`] (the files they lie in)
//! → [`reader`] (reads them back, and finds its way past damage) → [`index`] (what is fed is freed).
//! Beside it: [`record`] (bytes), [`mod@open`] (what a crash left), [`mod@count`] (how much), [`directory`] (whose it is), [`disk`]
//! (the writing side of the file system, so that tests can make it fail).
//!
//! Invariants: a group is reported as written only after its sync; a record that was reported is
//! read back, or an error names where it lay; a number is never used twice. Nothing here knows Redis
//! or HTTP, and nothing is deleted that was not said to be fed.

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
pub use index::Index;
pub use open::open;
pub use reader::{Chunk, Reader};
pub use writer::{Limits, WriteError, Writer};

#[cfg(test)]
mod tests;
