//! Every status the receiver answers with, and every way to earn it.

mod connections;
mod limits;
mod queue;
mod shared;
mod signature;
mod table;
mod timestamp;
