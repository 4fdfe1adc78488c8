//! Paths of pages. Names of shops, topics and ids come from strangers, so all of them are encoded.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Path of everything that is known about a webhook.
pub fn webhook(id: &str) -> String {
    format!("/webhooks/{}", encoded(id))
}

/// Path of a webhook's headers and body.
pub(super) fn content(id: &str) -> String {
    format!("/webhooks/{}/content", encoded(id))
}

/// Path of the headers and the body of a dead letter.
pub(super) fn letter_content(consumer: &str, id: &str) -> String {
    with(&content(id), &[("consumer", consumer)])
}

/// Path of one dead letter of a consumer.
pub(super) fn letter(consumer: &str, id: &str) -> String {
    with(&format!("/dead/{}", encoded(id)), &[("consumer", consumer)])
}

/// Path of one shop.
pub fn shop(shop: &str) -> String {
    format!("/shops/{}", encoded(shop))
}

/// A path with parameters. Empty ones are left out.
pub(super) fn with(path: &str, parameters: &[(&str, &str)]) -> String {
    let given = parameters.iter().filter(|(_, value)| !value.is_empty());
    let pairs: Vec<_> =
        given.map(|(name, value)| format!("{}={}", encoded(name), encoded(value))).collect();
    if pairs.is_empty() { path.to_owned() } else { format!("{path}?{}", pairs.join("&")) }
}

/// A path with the members of a query, and with `more` in place of those of the same name. Empty
/// ones are left out.
pub fn with_query<Q: Serialize>(path: &str, query: &Q, more: &[(&str, &str)]) -> String {
    let members = members(query);
    let kept = members.iter().filter(|(name, _)| more.iter().all(|(other, _)| other != name));
    let kept = kept.map(|(name, value)| (name.as_str(), value.as_str()));
    let all: Vec<_> = kept.chain(more.iter().copied()).collect();
    with(path, &all)
}

/// A query without its empty members, and without spaces around the others: a form sends the fields that
/// nobody filled in, too.
pub fn without_blanks<Q: Serialize + DeserializeOwned>(query: Q) -> Q {
    let Ok(Value::Object(mut members)) = serde_json::to_value(&query) else { return query };
    members.retain(|_, value| value.as_str().is_none_or(|text| !text.trim().is_empty()));
    for value in members.values_mut() {
        if let Value::String(text) = value {
            *text = text.trim().to_owned();
        }
    }
    serde_json::from_value(Value::Object(members)).unwrap_or(query)
}

/// Members of a query as texts; those that are not set are left out.
fn members<Q: Serialize>(query: &Q) -> Vec<(String, String)> {
    let Ok(Value::Object(members)) = serde_json::to_value(query) else { return Vec::new() };
    let text = |value: Value| match value {
        Value::String(text) => Some(text),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(true) => Some("true".to_owned()),
        Value::Null | Value::Bool(false) | Value::Array(_) | Value::Object(_) => None,
    };
    members.into_iter().filter_map(|(name, value)| Some((name, text(value)?))).collect()
}

/// Percent-encodes all bytes except those that RFC 3986 calls unreserved.
fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::dead::DeadQuery;
    use crate::model::top::{TopGroup, TopQuery};

    #[test]
    fn a_name_stays_one_segment_and_one_value() {
        assert_eq!(shop("a.example/../x?y#z"), "/shops/a.example%2F..%2Fx%3Fy%23z");
        assert_eq!(webhook("\"><b>ü"), "/webhooks/%22%3E%3Cb%3E%C3%BC");
        assert_eq!(letter("a&b=c", "7"), "/dead/7?consumer=a%26b%3Dc");
    }

    #[test]
    fn a_query_keeps_its_members_and_takes_more() {
        let query = DeadQuery {
            shop: Some("a.example".to_owned()),
            topic: Some("orders/*".to_owned()),
            after: Some("1-0".to_owned()),
            limit: Some(20),
            ..DeadQuery::default()
        };
        let path = with_query("/dead", &query, &[("after", "2-0")]);
        assert_eq!(path, "/dead?limit=20&shop=a.example&topic=orders%2F%2A&after=2-0");
        assert_eq!(with_query("/dead", &DeadQuery::default(), &[("after", "")]), "/dead");
        let by = TopQuery { by: TopGroup::Topic, ..TopQuery::default() };
        assert_eq!(with_query("/shops", &by, &[]), "/shops?by=topic");
    }

    #[test]
    fn fields_that_nobody_filled_in_are_none() {
        let query = DeadQuery {
            shop: Some("  ".to_owned()),
            topic: Some(" orders/create ".to_owned()),
            limit: Some(5),
            ..DeadQuery::default()
        };
        let query = without_blanks(query);
        let expected = DeadQuery {
            topic: Some("orders/create".to_owned()),
            limit: Some(5),
            ..DeadQuery::default()
        };
        assert_eq!(query, expected);
    }
}
