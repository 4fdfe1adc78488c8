//! Style of the workspace's Rust sources: what a parser can count, and which rules of CONTRIBUTING.md
//! a source breaks. Tests inside product files are left out.

mod facts;
mod imports;
mod prose;
mod tree;

pub use facts::{Facts, Struct};
pub use imports::{circles, imports};
pub use prose::{opens_badly, unwanted};
pub use tree::{PRODUCT, Source, bytes_of, repository, sources, tracked};
