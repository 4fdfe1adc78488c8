//! Which webhooks are meant, as every command asks for it.

use clap::Args;
use spillway_queue::orders::Filter;
use spillway_webhook::WebhookId;

use crate::failure::Failure;

/// All of those given have to match.
#[derive(Debug, Clone, Default, Args)]
pub struct FilterArguments {
    /// Of this shop
    #[arg(long)]
    pub shop: Option<String>,

    /// Of this topic; orders/* means every topic that begins so
    #[arg(long)]
    pub topic: Option<String>,

    /// About this resource, such as product/12
    #[arg(long)]
    pub resource: Option<String>,

    /// With this Shopify webhook id or Spillway-Id
    #[arg(long)]
    pub webhook_id: Option<String>,
}

impl FilterArguments {
    /// The filter they make.
    pub fn filter(self) -> Filter {
        let Self { shop, topic, resource, webhook_id } = self;
        Filter { shop, topic, resource, webhook_id }
    }
}

/// Reads a Spillway-Id.
pub fn webhook_id(text: &str) -> Result<WebhookId, Failure> {
    text.parse().map_err(|_| {
        Failure::Usage(format!(
            "{text:?} is no Spillway-Id such as a1b2c3d4-1767268800000-0000000000-00000; for \
             Shopify's id use --webhook-id"
        ))
    })
}
