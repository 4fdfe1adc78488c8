//! The archive: every accepted webhook in immutable objects of a directory or an object store.
//!
//! The path of a pack: [`writer`] adds it to the object that is being filled, whose [`index`] describes it
//! (with [`bloom`]), and [`keys`] encrypts it if there are keys. [`store`] puts the object under its
//! [`name`]. Later, [`store`] lists objects, [`object`] opens them, and [`chain`] finds gaps and packs that are
//! in several objects; [`reader`] returns the packs of a range, each once. [`checkpoint`] is what the consumers
//! have settled, and [`erase`] writes an object again without some of its webhooks. Also: [`header`] (first
//! bytes of an object), [`args`] (settings), `buckets` (access to them), `directory`
//! (syncing and cleaning up files), `input` (reading bytes that may be damaged).
//!
//! Nothing in this crate knows Redis. The layout is described in docs/archive-format.md, decisions are in ADR 28.

pub mod args;
pub mod bloom;
mod buckets;
pub mod chain;
pub mod checkpoint;
mod directory;
pub mod erase;
pub mod error;
pub mod header;
pub mod index;
mod input;
pub mod keys;
pub mod name;
pub mod object;
pub mod reader;
pub mod store;
pub mod writer;

pub use checkpoint::{Checkpoint, ConsumerCheckpoint, LaneMark};
pub use error::{BadObject, StoreError};
pub use name::{ListedObject, ObjectName};
pub use object::{ArchiveObject, ObjectTail};
pub use reader::{ArchiveReader, ArchivedPack};
pub use store::ArchiveStore;
pub use writer::{ObjectWriter, SealedObject};

#[cfg(test)]
mod tests;
