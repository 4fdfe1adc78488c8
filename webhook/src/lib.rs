//! What a Shopify webhook is, and everything that can be decided about one without a socket, a
//! clock or Redis.
//!
//! The path of a webhook through this crate: [`target`] (is the path one we pass on?) →
//! [`signature`] (who sent it?) → [`shopify`] and [`freshness`] (what is it, and since when?) →
//! [`pack`] (many of them as one stream entry) → [`identity`], [`resource`] and [`fingerprint`]
//! (which one is it, what must it stay in order with, was it there before?) → [`chunk`] (webhooks of
//! one lane that wait, each with its [`position`]).

pub mod changes;
pub mod chunk;
pub mod event;
pub mod fingerprint;
pub mod freshness;
pub mod identity;
pub mod pack;
pub mod position;
pub mod resource;
pub mod shopify;
pub mod signature;
pub mod spans;
pub mod stable_hash;
pub mod target;

pub use changes::{Changes, RetryChanges, StoredRetry};
pub use chunk::Chunk;
pub use event::Webhook;
pub use identity::{StreamId, WebhookId};
pub use position::Position;
pub use signature::{Secrets, Verified};
pub use spans::Spans;
