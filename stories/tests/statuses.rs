//! Every status that the receiver answers with, and every way to get it.

mod connections;
mod limits;
mod queue;
mod shared;
mod signature;
mod table;
mod timestamp;
