//! Foundation of the endurance measurements: crowds of shops that send millions of numbered
//! webhooks, a record of them in arrays, a backend with little work per delivery, and samples of
//! the cell.
//!
//! The [`ledger`](crate::ledger) and the [`backend`](crate::backend) of the other stories keep
//! every attempt and every header, which is too much for millions of webhooks.

pub mod crowd;
pub mod lanes;
pub mod record;
pub mod results;
pub mod samples;
pub mod sender;
pub mod sink;
pub mod slowest;
