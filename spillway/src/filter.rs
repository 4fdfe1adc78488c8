//! Filter flags that all commands share.

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use spillway_queue::controls::Filter;
use spillway_webhook::WebhookId;

use crate::failure::Failure;

/// Names of the filter flags, for messages.
pub(crate) const FILTERS: &str = "--shop, --topic, --resource, --app, --webhook-id";

/// Filter flags. A webhook must match all of those given. An empty value, such as that of an unset
/// variable of a shell, is refused: it would match every webhook without an app.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct FilterArguments {
    /// Only webhooks of this shop
    #[arg(short, long, value_parser = NonEmptyStringValueParser::new())]
    pub shop: Option<String>,

    /// Only webhooks of this topic; orders/* matches every topic that begins with orders/
    #[arg(short, long, value_parser = NonEmptyStringValueParser::new())]
    pub topic: Option<String>,

    /// Only webhooks for this app of APPS_FILE
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    pub app: Option<String>,

    /// Only webhooks about this resource, such as product/12
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    pub resource: Option<String>,

    /// Only webhooks with this Shopify webhook id or Spillway-Id
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
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
pub(crate) fn spillway_id(text: &str) -> Result<WebhookId, Failure> {
    text.parse().map_err(|_| {
        Failure::Usage(format!(
            "{text:?} is no Spillway-Id such as a1b2c3d4-1767268800000-0000000000-00000; for \
             Shopify's id use --webhook-id"
        ))
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        filter: FilterArguments,
    }

    #[test]
    fn an_empty_value_is_refused() {
        for flag in ["--shop", "--topic", "--app", "--resource", "--webhook-id"] {
            assert!(Command::try_parse_from(["spillway", flag, "a"]).is_ok(), "{flag}");
            assert!(Command::try_parse_from(["spillway", flag, ""]).is_err(), "{flag}");
        }
    }
}
