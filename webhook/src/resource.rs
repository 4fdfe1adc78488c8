//! Resource of a webhook: its shop and the object that the event is about. The webhooks of one
//! resource stay in order.
//!
//! For a classic webhook, the id is looked for in the headers first, then in the body. For an Event,
//! it is looked for in the body's `query_variables` (`productId` for the topic `Product`), then in
//! the paths of `fields_changed`, then in the headers. Both families give one product the same
//! resource. A webhook without an id is kept in order with all others of its shop and type that have none,
//! whatever their action. That is safe but slower, so it is counted. Webhook and event ids are
//! never resource ids: they differ for each event of a resource.

use std::borrow::Cow;
use std::collections::HashMap;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::shopify::{Family, Headers, resource_kind, without_mark};

/// Object that an event is about, within its shop.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Resource {
    /// Kind of object, such as `product`.
    pub kind: String,
    /// Id of the object as text. If none was found, the topic without its action.
    pub id: String,
    /// True if no id was found.
    pub is_fallback: bool,
}

#[derive(Deserialize)]
struct BodyIds<'a> {
    #[serde(borrow)]
    admin_graphql_api_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    inventory_item_id: Option<&'a RawValue>,
    #[serde(borrow)]
    location_id: Option<&'a RawValue>,
    #[serde(borrow)]
    id: Option<&'a RawValue>,
}

/// Parts of an Event's body that name its resource.
#[derive(Deserialize)]
struct EventIds<'a> {
    /// An object of texts, such as `{"productId": "gid://shopify/Product/12"}`.
    #[serde(borrow)]
    query_variables: Option<&'a RawValue>,
    /// Lists of paths in an object, or one list, as it was before September 2026.
    #[serde(borrow)]
    fields_changed: Option<&'a RawValue>,
}

/// Parts of an Event's body that tell if it holds the state of its resource.
#[derive(Deserialize)]
struct EventState<'a> {
    query_variables: Option<HashMap<String, IgnoredAny>>,
    /// Result of the query; absent without one, null if it failed.
    #[serde(borrow)]
    data: Option<&'a RawValue>,
}

impl Resource {
    /// Finds the resource of a webhook with these headers and this body.
    pub fn of(headers: &impl Headers, body: &[u8]) -> Self {
        let body = without_mark(body);
        let topic = headers.topic().unwrap_or_default();
        let topic = String::from_utf8_lossy(&topic);
        let kind = resource_kind(&topic);
        let id = match headers.family() {
            Family::Classic => {
                id_from_headers(headers, &kind).or_else(|| id_from_body(&kind, body))
            }
            Family::Event => id_of_event(headers, &topic, &kind, body),
        };
        if let Some(id) = id {
            return Self { kind, id, is_fallback: false };
        }
        // The action is left out: an update must not overtake the deletion before it.
        let id = type_name(&topic).to_owned();
        Self { kind, id, is_fallback: true }
    }
}

impl std::fmt::Display for Resource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_fallback {
            write!(f, "{}", self.id)
        } else {
            write!(f, "{}/{}", self.kind, self.id)
        }
    }
}

fn id_from_headers(headers: &impl Headers, kind: &str) -> Option<String> {
    let own = if matches!(kind, "webhook" | "event" | "") {
        None
    } else {
        headers.shopify(&format!("{}-id", kind.replace('_', "-")))
    };
    let value = own.or_else(|| headers.value("shopify-resource-id"))?;
    let id = without_gid(std::str::from_utf8(value).ok()?.trim());
    (!id.is_empty()).then(|| id.to_owned())
}

fn id_from_body(kind: &str, body: &[u8]) -> Option<String> {
    let ids: BodyIds = serde_json::from_slice(body).ok()?;
    // An update of a stock level has a gid, too. The end of one (`inventory_levels/disconnect`) has
    // these two alone.
    if kind == "inventory_level"
        && let (Some(item), Some(location)) =
            (scalar(ids.inventory_item_id), scalar(ids.location_id))
    {
        return Some(format!("{item}@{location}"));
    }
    if let Some(gid) = &ids.admin_graphql_api_id {
        let id = without_gid(gid);
        return (!id.is_empty()).then(|| id.to_owned());
    }
    scalar(ids.id).map(|id| without_gid(id).to_owned())
}

fn id_of_event(headers: &impl Headers, topic: &str, kind: &str, body: &[u8]) -> Option<String> {
    let root = root_of(topic)?;
    let ids: Option<EventIds> = serde_json::from_slice(body).ok();
    let variables = ids.as_ref().and_then(|ids| ids.query_variables);
    let changed = ids.as_ref().and_then(|ids| ids.fields_changed);
    let variable = variables.and_then(|variables| id_from_variables(variables, &root));
    // The body is signed, the headers are not.
    variable.or_else(|| id_from_paths(changed?, &root)).or_else(|| id_from_headers(headers, kind))
}

/// True if the body of an Event holds the state of its resource: the data of a query that names the
/// resource alone. The data of an Event about a child may be that of the child, a failed query has
/// none, and without a query an Event says only what changed.
pub fn is_whole_state(body: &[u8]) -> bool {
    let state: Option<EventState> = serde_json::from_slice(without_mark(body)).ok();
    state.is_some_and(|EventState { query_variables, data }| {
        query_variables.is_some_and(|variables| variables.len() == 1)
            && data.is_some_and(|data| data.get().starts_with('{'))
    })
}

/// Name of a topic's resource in the body of an Event: `inventoryItem` for `InventoryItem/update`.
pub(crate) fn root_of(topic: &str) -> Option<String> {
    let mut root = type_name(topic).to_owned();
    root.get_mut(..1)?.make_ascii_lowercase();
    Some(root)
}

fn type_name(topic: &str) -> &str {
    topic.split('/').next().unwrap_or_default()
}

fn id_from_variables(variables: &RawValue, root: &str) -> Option<String> {
    let variables: Value = serde_json::from_str(variables.get()).ok()?;
    let id = match variables.get(format!("{root}Id"))? {
        Value::String(id) => without_gid(id).to_owned(),
        Value::Number(id) => id.to_string(),
        _ => return None,
    };
    (!id.is_empty()).then_some(id)
}

/// Returns the id in the first path that begins like `product[id: 'gid://shopify/Product/12']`.
fn id_from_paths(fields_changed: &RawValue, root: &str) -> Option<String> {
    let changed: Value = serde_json::from_str(fields_changed.get()).ok()?;
    let lists = match &changed {
        Value::Object(lists) => lists.values().collect(),
        _ => Vec::from([&changed]),
    };
    let start = format!("{root}[id: '");
    let paths = lists.into_iter().filter_map(Value::as_array).flatten().filter_map(Value::as_str);
    let mut ids = paths.filter_map(|path| path.strip_prefix(&start)?.split_once('\''));
    let id = without_gid(ids.next()?.0);
    (!id.is_empty()).then(|| id.to_owned())
}

/// Text of a JSON number, or of a JSON string without its quotes.
fn scalar(value: Option<&RawValue>) -> Option<&str> {
    let text = value?.get();
    let unquoted = text.trim_matches('"');
    (!matches!(text.as_bytes().first(), Some(b'{' | b'[' | b'n' | b't' | b'f'))
        && !unquoted.is_empty())
    .then_some(unquoted)
}

/// Cuts `gid://shopify/Product/12` down to `12`. A part from a `?` on belongs to the id.
fn without_gid(id: &str) -> &str {
    let path = id.split('?').next().unwrap_or_default();
    match path.rfind('/') {
        Some(slash) if id.starts_with("gid://") => &id[slash + 1..],
        _ => id,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderMap;

    fn check(headers: &[(&'static str, &str)], body: &str, expected: &str) {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, value.parse().unwrap());
        }
        assert_eq!(Resource::of(&map, body.as_bytes()).to_string(), expected, "{headers:?} {body}");
    }

    #[test]
    fn the_header_of_a_classic_webhook_is_asked_first() {
        let topic = ("x-shopify-topic", "products/update");
        check(&[topic, ("x-shopify-product-id", "12")], r#"{"id":13}"#, "product/12");
        check(&[topic, ("shopify-product-id", "12")], "{", "product/12");
        check(&[topic, ("shopify-resource-id", "gid://shopify/Product/12")], "{}", "product/12");
        let item =
            [("x-shopify-topic", "inventory_items/update"), ("x-shopify-inventory-item-id", "9")];
        check(&item, "{}", "inventory_item/9");
    }

    #[test]
    fn only_the_data_of_the_resource_itself_is_its_state() {
        let is = |variables: &str, data: &str| {
            let body = format!(r#"{{"query_variables":{variables},"data":{data}}}"#);
            is_whole_state(body.as_bytes())
        };
        let own = r#"{"productId":"gid://shopify/Product/12"}"#;
        assert!(is(own, r#"{"product":{}}"#));
        assert!(!is(own, "null"));
        assert!(!is(r#"{"productId":"1","variantsId":"2"}"#, r#"{"product":{}}"#));
        assert!(!is("{}", r#"{"product":{}}"#));
        assert!(!is_whole_state(format!(r#"{{"query_variables":{own}}}"#).as_bytes()));
        assert!(!is_whole_state(b"{"));
    }

    #[test]
    fn each_form_of_an_event_names_its_resource() {
        let samples: Vec<Value> =
            serde_json::from_str(include_str!("../samples/events.json")).unwrap();
        for sample in samples {
            let text = |name: &str| sample[name].as_str().unwrap();
            let headers = [
                ("shopify-hmac-sha256", "signature"),
                ("shopify-topic", text("topic")),
                ("shopify-action", text("action")),
            ];
            check(&headers, &sample["body"].to_string(), text("resource"));
        }
    }

    #[test]
    fn both_families_give_one_resource() {
        let classic = [("x-shopify-topic", "inventory_items/update")];
        let event = [("shopify-hmac-sha256", "s"), ("shopify-topic", "InventoryItem")];
        check(&classic, r#"{"id":9}"#, "inventory_item/9");
        let escaped =
            r#"{"query_variables":{"inventoryItemId":"gid:\/\/shopify\/InventoryItem\/9"}}"#;
        check(&event, escaped, "inventory_item/9");
        check(&event, r#"{"query_variables":{"inventoryItemId":9}}"#, "inventory_item/9");
        // The body is signed, the headers are not.
        let named = [event[0], event[1], ("shopify-resource-id", "gid://shopify/InventoryItem/8")];
        check(&named, escaped, "inventory_item/9");
        check(&named, "{}", "inventory_item/8");
        let path =
            r#"{"fields_changed":["inventoryItem[id: 'gid://shopify/InventoryItem/7'].sku"]}"#;
        check(&named, path, "inventory_item/7");
        check(&event, &format!("\u{feff}{escaped}"), "inventory_item/9");
        check(&classic, "\u{feff}{\"id\":9}", "inventory_item/9");
        check(&event, r#"{"id":9,"admin_graphql_api_id":"gid://shopify/X/9"}"#, "InventoryItem");
    }

    #[test]
    fn update_and_delete_share_a_resource() {
        let update = [("x-shopify-topic", "products/update"), ("x-shopify-product-id", "12")];
        check(&update, "{}", "product/12");
        check(&[("x-shopify-topic", "products/delete")], r#"{"id":12}"#, "product/12");
    }

    #[test]
    fn the_body_is_asked_next() {
        let topic = [("x-shopify-topic", "inventory_levels/update")];
        check(&topic, r#"{"inventory_item_id":1,"location_id":"2","id":3}"#, "inventory_level/1@2");
        check(
            &topic,
            r#"{"admin_graphql_api_id":"gid:\/\/shopify\/InventoryLevel\/5?inventory_item_id=6"}"#,
            "inventory_level/5?inventory_item_id=6",
        );
        check(&topic, r#" {"a":[{"id":1}],"id" : "gid://shopify/X/8"} "#, "inventory_level/8");
    }

    #[test]
    fn a_stock_level_is_one_resource_with_and_without_a_gid() {
        let gid = "gid:\\/\\/shopify\\/InventoryLevel\\/5?inventory_item_id=1";
        let both = format!(
            r#"{{"inventory_item_id":1,"location_id":2,"available":3,"admin_graphql_api_id":"{gid}"}}"#
        );
        check(&[("x-shopify-topic", "inventory_levels/update")], &both, "inventory_level/1@2");
        let ended = r#"{"inventory_item_id":1,"location_id":2}"#;
        check(&[("x-shopify-topic", "inventory_levels/disconnect")], ended, "inventory_level/1@2");
        // Others may name an item and a location beside their own id.
        let other = r#"{"inventory_item_id":1,"location_id":2,"id":7}"#;
        check(&[("x-shopify-topic", "inventory_transfers/x")], other, "inventory_transfer/7");
    }

    #[test]
    fn without_an_id_all_actions_of_a_type_are_one_resource() {
        for topic in ["fulfillment_orders/placed_on_hold", "fulfillment_orders/hold_released"] {
            let nested = r#"{"fulfillment_order":{"id":"gid://shopify/FulfillmentOrder/1"}}"#;
            check(&[("x-shopify-topic", topic)], nested, "fulfillment_orders");
        }
    }

    #[test]
    fn without_an_id_it_is_the_type() {
        let topic = ("x-shopify-topic", "carts/update");
        for body in
            ["", "<xml/>", "{}", r#"{"id":null}"#, r#"{"id":{"a":1}}"#, "{\"id\":1", "{\u{1}"]
        {
            check(&[topic], body, "carts");
        }
        check(&[("x-shopify-topic", "events/x"), ("x-shopify-event-id", "77")], "{}", "events");
        check(
            &[("x-shopify-topic", "webhooks/x"), ("x-shopify-webhook-id", "77")],
            "{}",
            "webhooks",
        );
    }
}
