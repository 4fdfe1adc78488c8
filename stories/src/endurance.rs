//! What the endurance measurements stand on: crowds of shops that send millions of numbered
//! webhooks, a record of them in arrays, a backend that is cheap for each, and what is measured
//! beside them.
//!
//! The [`ledger`](crate::ledger) and the [`backend`](crate::backend) of the other stories keep every
//! attempt and every header, which is too much for millions.

pub mod crowd;
pub mod lanes;
pub mod record;
pub mod results;
pub mod samples;
pub mod sender;
pub mod sink;
pub mod slowest;
