//! What the measuring tools share: signed, distinct Shopify webhooks made from the two templates at
//! the repository root, `loadtest` (request line and headers) and `request.json` (body).
//!
//! Follow one webhook through the files: [`product`] makes a body, [`signature`] signs it,
//! [`webhook`] gives it ids and a time, [`target`] puts these into the headers, [`encode`] writes it
//! in the form a load generator reads, and [`stream`] does so on all cores, in order.
//!
//! Nothing here is used by Spillway itself, and nothing here uses Spillway: a fault in one cannot
//! hide in the other.

pub mod encode;
pub mod product;
pub mod signature;
pub mod stream;
pub mod target;
pub mod webhook;
