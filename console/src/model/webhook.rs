//! Webhooks that wait, and everything that is known about one.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Waiting webhooks to list.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WebhookQuery {
    /// Consumer; the only one that delivers, or http, without it.
    #[serde(default)]
    pub consumer: Option<String>,
    /// Webhooks of this shop.
    #[serde(default)]
    pub shop: Option<String>,
    /// Webhooks of this topic, or of all topics such as `orders/*`.
    #[serde(default)]
    pub topic: Option<String>,
    /// Webhooks about this resource, such as `product/12`.
    #[serde(default)]
    pub resource: Option<String>,
    /// Webhooks for this app.
    #[serde(default)]
    pub app: Option<String>,
    /// Accepted at or after this time, RFC 3339 or how long ago.
    #[serde(default)]
    pub since: Option<String>,
    /// Accepted at or before this time, RFC 3339 or how long ago.
    #[serde(default)]
    pub until: Option<String>,
    /// Cursor of the page before.
    #[serde(default)]
    pub after: Option<String>,
    /// Most webhooks of one page, up to 200; 50 without it.
    #[serde(default)]
    pub limit: Option<u32>,
}

/// A page of waiting webhooks, in the order in which they were accepted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct WebhookList {
    /// Consumer for which they wait.
    pub consumer: String,
    /// Number of all that wait for it, whatever the filter.
    pub total: u64,
    /// Webhooks of this page.
    pub webhooks: Vec<WebhookSummary>,
    /// Cursor of the next page.
    pub next: Option<String>,
}

/// A webhook without its body and headers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct WebhookSummary {
    /// Spillway-Id.
    pub spillway_id: String,
    /// Shopify's webhook id.
    pub webhook_id: String,
    /// Shop domain.
    pub shop: String,
    /// Topic.
    pub topic: String,
    /// Resource, such as `product/12`.
    pub resource: String,
    /// App; empty where a receiver serves one.
    pub app: String,
    /// Time at which it was accepted, in milliseconds since the Unix epoch.
    pub received_at_ms: u64,
    /// Size of the body.
    pub bytes: u64,
    /// Place in which it waits: `main`, `lane` or `replay`.
    pub place: String,
    /// Attempts made, if it waits outside the main stream.
    pub attempts: Option<u32>,
}

/// Question for the story of one webhook.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StoryQuery {
    /// Cursor of the answer before, which was not complete.
    #[serde(default)]
    pub after: Option<String>,
}

/// Everything that is known about one webhook.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct WebhookStory {
    /// Id that was asked for.
    pub id: String,
    /// Facts of each consumer.
    pub consumers: Vec<ConsumerStory>,
    /// False while the search goes on: ask again with `next`. The answer has everything that was found so far.
    pub is_complete: bool,
    /// Cursor with which to ask again.
    pub next: Option<String>,
}

/// Facts that one consumer has about a webhook.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ConsumerStory {
    /// Name of the consumer.
    pub consumer: String,
    /// Facts, in the order of time.
    pub facts: Vec<StoryFact>,
    /// Sentence about what the consumer can't know, if it has no facts.
    pub gap: String,
}

/// A fact about a webhook.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct StoryFact {
    /// Spillway-Id of the webhook.
    pub spillway_id: String,
    /// Code of the fact, such as `delivered`.
    pub state: String,
    /// Time, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The fact as a sentence.
    pub text: String,
}

/// A webhook as it was received. Personal data.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct WebhookContent {
    /// Spillway-Id.
    pub spillway_id: String,
    /// Path and query of the request.
    pub target: String,
    /// Headers, in their order.
    pub headers: Vec<ContentHeader>,
    /// Body as text. Bytes that are no UTF-8 are replaced.
    pub body: String,
    /// True if the body is UTF-8, so that `body` is all of it.
    pub is_exact: bool,
}

/// A header of a webhook.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ContentHeader {
    /// Name, as it was received.
    pub name: String,
    /// Value.
    pub value: String,
}
