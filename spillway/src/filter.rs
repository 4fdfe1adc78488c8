//! Filter flags that all commands share.

use clap::Args;
use spillway_queue::controls::Filter;
use spillway_webhook::WebhookId;

use crate::failure::Failure;

/// Filter flags. A webhook must match all of those given.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct FilterArguments {
    /// Only webhooks of this shop
    #[arg(long)]
    pub shop: Option<String>,

    /// Only webhooks of this topic; orders/* matches every topic that begins with orders/
    #[arg(long)]
    pub topic: Option<String>,

    /// Only webhooks for this app of APPS_FILE
    #[arg(long)]
    pub app: Option<String>,

    /// Only webhooks about this resource, such as product/12
    #[arg(long)]
    pub resource: Option<String>,

    /// Only webhooks with this Shopify webhook id or Spillway-Id
    #[arg(long)]
    pub webhook_id: Option<String>,
}

impl FilterArguments {
    /// Converts the flags to a filter.
    pub(crate) fn filter(self) -> Filter {
        let Self { shop, topic, app, resource, webhook_id } = self;
        Filter { shop, topic, app, resource, webhook_id }
    }
}

/// Parses a Spillway-Id.
pub(crate) fn webhook_id(text: &str) -> Result<WebhookId, Failure> {
    text.parse().map_err(|_| {
        Failure::Usage(format!(
            "{text:?} is no Spillway-Id such as a1b2c3d4-1767268800000-0000000000-00000; for \
             Shopify's id use --webhook-id"
        ))
    })
}
