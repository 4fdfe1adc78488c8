//! Library of the measuring tools: signed, distinct Shopify webhooks, made from two templates at
//! the repository root. `loadtest` has the request line and headers, `request.json` the body.
//!
//! The path of a webhook through the files: [`product`] makes a body, [`signature`] signs it,
//! [`webhook`] adds ids ([`id`]) and a time, and [`target`] puts these into the headers.
//! [`encode`] writes the webhook in the format of a load generator, and [`stream`] does so on all
//! cores, in order.
//!
//! Spillway does not use this library, and this library does not use Spillway. A bug in one cannot
//! hide a bug in the other.

pub mod encode;
pub mod event;
pub mod id;
pub mod product;
pub mod signature;
pub mod stream;
pub mod target;
pub mod webhook;
