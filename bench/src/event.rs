//! Bodies of Events, made of products.

use crate::target::Target;

/// Topic, action and handle of the Events of a template, as its headers name them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventHead {
    topic: String,
    action: String,
    handle: String,
}

impl EventHead {
    /// Event of a template; `None` for the template of a classic webhook, which has no
    /// `Shopify-Hmac-Sha256`.
    ///
    /// # Errors
    /// Names the header that the template of an Event lacks.
    pub fn of(target: &Target) -> Result<Option<Self>, String> {
        if target.value("shopify-hmac-sha256").is_none() {
            return Ok(None);
        }
        let fixed = |name: &str| {
            let value = target.value(name).and_then(|value| value.fixed());
            let value = value.filter(|value| !value.contains(['"', '\\']));
            value.map(ToOwned::to_owned).ok_or_else(|| format!("an Event needs a fixed {name}"))
        };
        let [topic, action, handle] =
            ["Shopify-Topic", "Shopify-Action", "Shopify-Handle"].map(fixed);
        Ok(Some(Self { topic: topic?, action: action?, handle: handle? }))
    }

    /// Returns the body of an Event about this product, whose price changed.
    pub fn body(&self, product_id: u64, product: &[u8]) -> Vec<u8> {
        let Self { topic, action, handle } = self;
        let mut body = format!(r#"{{"topic":"{topic}","action":"{action}","handle":"{handle}","#);
        body.push_str(r#""data":{"product":"#);
        let mut body = body.into_bytes();
        body.extend_from_slice(product);
        let gid = format!("gid://shopify/Product/{product_id}");
        let path = format!("product[id: '{gid}'].variants[id: '{gid}'].price");
        let changed = format!(r#"{{"added":[],"updated":["{path}"],"removed":[]}}"#);
        let variables = format!(r#"{{"productId":"{gid}"}}"#);
        let rest = format!(r#"}},"fields_changed":{changed},"query_variables":{variables}}}"#);
        body.extend_from_slice(rest.as_bytes());
        body
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn template(name: &str) -> Target {
        Target::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name)).unwrap()
    }

    #[test]
    fn the_template_of_an_event_makes_bodies_of_events() {
        let event = EventHead::of(&template("loadtest-events")).unwrap().unwrap();
        let body: serde_json::Value =
            serde_json::from_slice(&event.body(12, br#"{"id":12}"#)).unwrap();
        assert_eq!(body["topic"], "Product");
        assert_eq!(body["action"], "update");
        assert_eq!(body["data"]["product"]["id"], 12);
        assert_eq!(body["query_variables"]["productId"], "gid://shopify/Product/12");
        assert_eq!(EventHead::of(&template("loadtest")), Ok(None));
    }

    #[test]
    fn a_template_without_a_handle_is_refused() {
        let mut target = template("loadtest-events");
        target.headers.retain(|(name, _)| name != "Shopify-Handle");
        let problem = EventHead::of(&target).unwrap_err();
        assert_eq!(problem, "an Event needs a fixed Shopify-Handle");
    }
}
