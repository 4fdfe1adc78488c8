//! Filter flags that all commands share.

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use spillway_process::settings::parse_duration;
use spillway_queue::controls::Filter;
use spillway_webhook::shopify::is_topic_pattern;
use spillway_webhook::{WebhookId, freshness};

use crate::failure::Failure;

/// Names of the filter flags, for messages.
pub(crate) const FILTERS: &str = "--shop, --topic, --resource, --app, --webhook-id";

/// Bytes of one value. Shopify's are shorter; a pause stores them in Redis, and the audit keeps them.
const VALUE_BYTES: usize = 256;

/// Filter flags. A webhook must match all of those given. An empty value, such as that of an unset
/// variable of a shell, is refused: it would match every webhook without an app. So is a value that
/// no webhook can match.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct FilterArguments {
    /// Only webhooks of this shop
    #[arg(short, long, value_parser = shop)]
    pub shop: Option<String>,

    /// Only webhooks of this topic; orders/* matches every topic that begins with orders/
    #[arg(short, long, value_parser = topic)]
    pub topic: Option<String>,

    /// Only webhooks for this app of APPS_FILE
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    pub app: Option<String>,

    /// Only webhooks about this resource, such as product/12
    #[arg(long, value_parser = resource)]
    pub resource: Option<String>,

    /// Only webhooks with this Shopify webhook id or Spillway-Id
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    pub webhook_id: Option<String>,
}

impl FilterArguments {
    /// Checks values that come from elsewhere than the command line. An empty one counts as absent, as that
    /// of an empty field of a form.
    pub(crate) fn checked(self) -> Result<Filter, Failure> {
        let given = |text: Option<String>| {
            text.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
        };
        let checked = |text: Option<String>, check: fn(&str) -> Result<String, &'static str>| {
            let checked = given(text).map(|text| bounded(&text).and_then(|_| check(&text)));
            checked.transpose().map_err(|problem| Failure::Usage(problem.to_owned()))
        };
        Ok(Filter {
            shop: checked(self.shop, shop)?,
            topic: checked(self.topic, topic)?,
            app: checked(self.app, bounded)?,
            resource: checked(self.resource, resource)?,
            webhook_id: checked(self.webhook_id, bounded)?,
        })
    }

    /// Converts the flags to a filter.
    pub(crate) fn filter(self) -> Filter {
        let Self { shop, topic, app, resource, webhook_id } = self;
        Filter { shop, topic, app, resource, webhook_id }
    }
}

/// One webhook, named by either of its ids.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct OneWebhook {
    /// Spillway-Id of the webhook
    spillway_id: Option<String>,

    /// Shopify's webhook id, in place of the Spillway-Id
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    webhook_id: Option<String>,
}

impl OneWebhook {
    /// The id as given, after the check of a Spillway-Id.
    pub(crate) fn checked(self) -> Result<String, Failure> {
        match (self.webhook_id, self.spillway_id) {
            (Some(id), _) => Ok(id),
            (None, Some(id)) => spillway_id(&id).map(|_| id),
            (None, None) => Err(Failure::Usage("give a Spillway-Id or --webhook-id".to_owned())),
        }
    }
}

/// A value that no webhook has, because it is too long or not a line of text, is refused.
fn bounded(text: &str) -> Result<String, &'static str> {
    let is_line = text.len() <= VALUE_BYTES && !text.chars().any(char::is_control);
    is_line
        .then(|| text.to_owned())
        .ok_or("a value of a filter has at most 256 bytes, and no control characters")
}

pub(crate) fn shop(text: &str) -> Result<String, &'static str> {
    let is_domain = text.split('.').count() > 1 && text.split('.').all(|part| !part.is_empty());
    is_domain.then(|| text.to_owned()).ok_or("a shop is a domain, such as a.myshopify.com")
}

pub(crate) fn topic(text: &str) -> Result<String, &'static str> {
    is_topic_pattern(text)
        .then(|| text.to_owned())
        .ok_or("a topic has a slash, such as orders/create or orders/*")
}

/// Kinds of resources that always have an id.
const WITH_ID: [&str; 6] = ["product", "order", "draft_order", "customer", "collection", "variant"];

/// A resource is `kind/id`. Without an id, it is the type in the topic, such as `products` or `shop`.
fn resource(text: &str) -> Result<String, &'static str> {
    let is_resource = match text.split_once('/') {
        Some((kind, id)) => !kind.is_empty() && !id.is_empty(),
        None => !text.is_empty() && !WITH_ID.contains(&text),
    };
    is_resource.then(|| text.to_owned()).ok_or("a resource is a kind and an id, such as product/12")
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

/// Parses an RFC 3339 time, or a duration before now, into milliseconds since the Unix epoch.
pub(crate) fn moment_ms(flag: &str, text: &str, now_ms: u64) -> Result<u64, Failure> {
    if let Some(ms) = freshness::millis(text.as_bytes()) {
        return Ok(u64::try_from(ms.max(0)).unwrap_or(u64::MAX));
    }
    match parse_duration(text) {
        Ok(ago) => Ok(now_ms.saturating_sub(u64::try_from(ago.as_millis()).unwrap_or(u64::MAX))),
        Err(problem) => Err(Failure::Usage(format!(
            "{flag} is neither a time such as 2026-01-01T12:00:00Z nor how long ago, such as 2h: {problem}"
        ))),
    }
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

    fn is_taken(flag: &str, value: &str) -> bool {
        Command::try_parse_from(["spillway", flag, value]).is_ok()
    }

    #[test]
    fn values_of_a_form_are_checked_and_empty_ones_are_absent() {
        let some = |text: &str| Some(text.to_owned());
        let form = FilterArguments {
            shop: some(" a.example "),
            topic: some(""),
            app: some(" "),
            ..FilterArguments::default()
        };
        let expected = Filter { shop: some("a.example"), ..Filter::default() };
        assert_eq!(form.checked().expect("good values"), expected);
        let bad = FilterArguments { shop: some("notashop"), ..FilterArguments::default() };
        assert!(bad.checked().is_err_and(|told| told.to_string().contains("domain")));
        for bad in ["x".repeat(VALUE_BYTES + 1), "a\nb".to_owned(), "a\u{1b}[2J".to_owned()] {
            let app = FilterArguments { app: Some(bad.clone()), ..FilterArguments::default() };
            let topic = FilterArguments {
                topic: Some(format!("orders/{bad}")),
                ..FilterArguments::default()
            };
            for bad in [app, topic] {
                assert!(bad.checked().is_err_and(|told| told.to_string().contains("256 bytes")));
            }
        }
        let long = FilterArguments { app: Some("x".repeat(VALUE_BYTES)), ..Default::default() };
        assert!(long.checked().is_ok());
    }

    #[test]
    fn an_empty_value_is_refused() {
        for (flag, good) in [
            ("--shop", "a.example"),
            ("--topic", "orders/create"),
            ("--app", "a"),
            ("--resource", "product/12"),
            ("--webhook-id", "a"),
        ] {
            assert!(is_taken(flag, good), "{flag}");
            assert!(!is_taken(flag, ""), "{flag}");
        }
    }

    #[test]
    fn minutes_and_months_are_not_confused() {
        let of = |text: &str| {
            moment_ms("--from", text, 3_600_000).map_err(|failure| failure.to_string())
        };
        assert_eq!(of("30m"), Ok(1_800_000));
        assert_eq!(of("30months"), Ok(0));
        for (text, instead) in [
            ("30M", "30m or 30months"),
            (" 30 M ", "30 m or 30 months"),
            ("1y 2M", "1y 2m or 1y 2months"),
        ] {
            let told = of(text).expect_err("either may be meant");
            assert!(told.contains("--from") && told.contains(instead), "{told}");
        }
        assert!(of("yesterday").is_err_and(|told| told.contains("such as 2h")));
    }

    #[test]
    fn a_value_that_matches_no_webhook_is_refused() {
        for (flag, good) in [
            ("--topic", "orders/*"),
            ("--topic", "Product/update"),
            ("--topic", "customer.tags_added"),
            ("--topic", "Order"),
            ("--resource", "inventory_level/1@2"),
            ("--resource", "products"),
            ("--resource", "Product"),
            ("--resource", "shop"),
            ("--resource", "customer.tags_added"),
        ] {
            assert!(is_taken(flag, good), "{flag} {good}");
        }
        for (flag, bad) in [
            ("--topic", "order"),
            ("--topic", "orders/"),
            ("--topic", "*/create"),
            ("--topic", "orders/cre*"),
            ("--resource", "product"),
            ("--resource", "product/"),
            ("--shop", "notashop"),
            ("--shop", "a."),
        ] {
            assert!(!is_taken(flag, bad), "{flag} {bad}");
        }
    }
}
