//! Redaction: the person or the shop whose data is to be forgotten, and the webhooks that hold it.
//!
//! Shopify sends `customers/redact` and `shop/redact`. Their bodies name a shop, and a customer by id, email
//! address, phone number and orders. A webhook holds data of a customer if it is of the same shop, and one of
//! these is true:
//! - A member that [`IDS`] lists holds the id of the customer or of one of the orders.
//! - A text anywhere in it holds the email address, the phone number, or the customer or an order as a GraphQL id.
//! - A header names the customer or one of the orders as its resource.
//!
//! A body that is no JSON is searched byte by byte. In doubt, a webhook holds the data: this is only asked about
//! what is to be erased. A shop's redaction means everything of the shop.

mod text;

use std::borrow::Cow;

use serde_json::Value;

use self::text::{digits_of, holds_email, holds_id, holds_number, holds_phone};
use crate::shopify::{Headers, is_compliance, resource_kind, without_mark};

/// Fewest digits of an id or a phone number that is searched for in bytes that are no JSON. Shorter ones occur by
/// chance.
const DIGITS_MIN: usize = 6;

/// Data that is to be forgotten.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redaction {
    shop: String,
    /// `None` for all of the shop.
    person: Option<Person>,
}

/// A customer of a shop.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Person {
    /// Id of the customer.
    pub id: Option<u64>,
    /// Email address.
    pub email: Option<String>,
    /// Phone number.
    pub phone: Option<String>,
    /// Ids of orders whose data is to be forgotten, too.
    pub orders: Vec<u64>,
}

/// Reason why a body is no redaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotARedaction {
    /// Another topic.
    #[error("the topic is neither customers/redact nor shop/redact")]
    Topic,
    /// The body is no JSON object.
    #[error("the body is no JSON object")]
    Body,
    /// There is no shop in it.
    #[error("it names no shop")]
    NoShop,
    /// There is nothing in it by which a customer is known.
    #[error("it names no customer")]
    NoPerson,
}

/// A webhook that is searched. Its body is parsed once, for all redactions.
pub struct SearchedWebhook<'a> {
    shop: Cow<'a, [u8]>,
    kind: String,
    /// Ids of customer and order that headers name.
    headers: [Option<u64>; 2],
    body: &'a [u8],
    json: Option<Value>,
}

/// Thing that an id belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IdOwner {
    Customer,
    Order,
}

/// Member of a body that holds an id.
struct IdMember {
    /// Kind of the topic's resource, such as `customer`; `None` for all.
    kind: Option<&'static str>,
    /// Object that the member is in.
    parent: Parent,
    member: &'static str,
    owner: IdOwner,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Parent {
    /// The body itself.
    Root,
    /// A member of this name, anywhere in the body.
    Named(&'static str),
    /// Any object of the body.
    Any,
}

/// Members that hold ids: the table of docs/privacy.md.
const IDS: [IdMember; 8] = [
    IdMember::new(Some("customer"), Parent::Root, "id", IdOwner::Customer),
    IdMember::new(None, Parent::Named("customer"), "id", IdOwner::Customer),
    IdMember::new(None, Parent::Any, "customer_id", IdOwner::Customer),
    IdMember::new(None, Parent::Any, "customerId", IdOwner::Customer),
    IdMember::new(Some("order"), Parent::Root, "id", IdOwner::Order),
    IdMember::new(None, Parent::Named("order"), "id", IdOwner::Order),
    IdMember::new(None, Parent::Any, "order_id", IdOwner::Order),
    IdMember::new(None, Parent::Any, "orderId", IdOwner::Order),
];

/// True for the topics that ask to forget somebody.
pub fn is_redaction(topic: &[u8]) -> bool {
    matches!(topic, b"customers/redact" | b"shop/redact")
}

impl IdMember {
    const fn new(
        kind: Option<&'static str>,
        parent: Parent,
        member: &'static str,
        owner: IdOwner,
    ) -> Self {
        Self { kind, parent, member, owner }
    }
}

impl Redaction {
    /// Redaction of everything of a shop.
    pub fn of_shop(shop: impl Into<String>) -> Self {
        Self { shop: shop.into(), person: None }
    }

    /// Redaction of a customer.
    ///
    /// # Errors
    /// [`NotARedaction::NoPerson`] if there is nothing by which the customer is known.
    pub fn of_person(shop: impl Into<String>, person: Person) -> Result<Self, NotARedaction> {
        if person == Person::default() {
            return Err(NotARedaction::NoPerson);
        }
        Ok(Self { shop: shop.into(), person: Some(person) })
    }

    /// Reads the webhook that asks for it.
    ///
    /// # Errors
    /// [`NotARedaction`]
    pub fn parse(headers: &impl Headers, body: &[u8]) -> Result<Self, NotARedaction> {
        let topic = headers.topic().unwrap_or_default();
        if !is_redaction(&topic) {
            return Err(NotARedaction::Topic);
        }
        let body: Value = serde_json::from_slice(without_mark(body))
            .ok()
            .filter(Value::is_object)
            .ok_or(NotARedaction::Body)?;
        let header = headers.shop().map(|shop| String::from_utf8_lossy(shop).into_owned());
        let shop = text_member(&body, "shop_domain").or(header).ok_or(NotARedaction::NoShop)?;
        if *topic == *b"shop/redact" {
            return Ok(Self::of_shop(shop));
        }
        let customer = &body["customer"];
        let orders = body["orders_to_redact"].as_array().map(Vec::as_slice).unwrap_or_default();
        let person = Person {
            id: id_of(&customer["id"]),
            email: text_member(customer, "email"),
            phone: text_member(customer, "phone"),
            orders: orders.iter().filter_map(id_of).collect(),
        };
        Self::of_person(shop, person)
    }

    /// Domain of the shop.
    pub fn shop(&self) -> &str {
        &self.shop
    }

    /// True if all of the shop is to be forgotten.
    pub fn is_of_shop(&self) -> bool {
        self.person.is_none()
    }

    /// True if the webhook holds data that is to be forgotten.
    pub fn is_in(&self, webhook: &mut SearchedWebhook<'_>) -> bool {
        if !webhook.shop.eq_ignore_ascii_case(self.shop.as_bytes()) {
            return false;
        }
        let Some(person) = &self.person else { return true };
        let [customer, order] = webhook.headers;
        if person.is_named(IdOwner::Customer, customer) || person.is_named(IdOwner::Order, order) {
            return true;
        }
        let kind = webhook.kind.clone();
        let bytes = webhook.body;
        match webhook.json() {
            Some(body) => person.is_in_value(body, &kind, Parent::Root),
            None => person.is_in_bytes(bytes),
        }
    }

    /// True if bytes that cannot be decoded show data that is to be forgotten. Compressed ones show nothing.
    pub fn is_in_bytes(&self, bytes: &[u8]) -> bool {
        match &self.person {
            Some(person) => person.is_in_bytes(bytes),
            None => {
                let lower = bytes.to_ascii_lowercase();
                let shop = self.shop.to_ascii_lowercase();
                memchr::memmem::find(&lower, shop.as_bytes()).is_some()
            }
        }
    }
}

impl Person {
    fn is_named(&self, owner: IdOwner, id: Option<u64>) -> bool {
        match owner {
            IdOwner::Customer => id.is_some() && id == self.id,
            IdOwner::Order => id.is_some_and(|id| self.orders.contains(&id)),
        }
    }

    /// True if a value shows the person. `parent` is the place of the value in its body.
    fn is_in_value(&self, value: &Value, kind: &str, parent: Parent) -> bool {
        match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => false,
            Value::String(text) => self.is_in_text(text),
            // An element is in the same place as its list.
            Value::Array(elements) => {
                elements.iter().any(|element| self.is_in_value(element, kind, parent))
            }
            Value::Object(members) => members.iter().any(|(name, value)| {
                self.is_id_member(kind, parent, name, value)
                    || self.is_in_text(name)
                    || self.is_in_value(value, kind, named(name))
            }),
        }
    }

    fn is_id_member(&self, kind: &str, parent: Parent, name: &str, value: &Value) -> bool {
        IDS.iter().any(|known| {
            known.member == name
                && known.kind.is_none_or(|known| known == kind)
                && (known.parent == Parent::Any || known.parent == parent)
                && self.is_named(known.owner, id_of(value))
        })
    }

    fn is_in_text(&self, text: &str) -> bool {
        self.email.as_ref().is_some_and(|email| holds_email(text, email))
            || self.phone.as_ref().is_some_and(|phone| holds_phone(text, phone))
            || self.id.is_some_and(|id| holds_id(text, "Customer", id))
            || self.orders.iter().any(|order| holds_id(text, "Order", *order))
    }

    fn is_in_bytes(&self, bytes: &[u8]) -> bool {
        // Not UTF-8 here and there: what is searched for is.
        let text = String::from_utf8_lossy(bytes);
        let ids = self.id.iter().chain(&self.orders).map(u64::to_string);
        let phone = self.phone.as_deref().map(digits_of);
        let mut numbers = ids.chain(phone).filter(|number| number.len() >= DIGITS_MIN);
        self.email.as_ref().is_some_and(|email| holds_email(&text, email))
            || self.phone.as_ref().is_some_and(|phone| holds_phone(&text, phone))
            || numbers.any(|number| holds_number(&text, &number))
    }
}

/// Place of a member's value, as far as [`IDS`] knows it.
fn named(member: &str) -> Parent {
    let known = IDS.iter().map(|known| known.parent);
    let mut named = known.filter(|parent| matches!(parent, Parent::Named(name) if *name == member));
    named.next().unwrap_or(Parent::Any)
}

impl<'a> SearchedWebhook<'a> {
    /// Prepares the search of a webhook.
    pub fn new(headers: &'a impl Headers, body: &'a [u8]) -> Self {
        let topic = headers.topic().unwrap_or_default();
        let id = |name| std::str::from_utf8(headers.shopify(name)?).ok()?.trim().parse().ok();
        let mut searched = Self {
            shop: Cow::Borrowed(headers.shop().unwrap_or_default()),
            kind: resource_kind(&String::from_utf8_lossy(&topic)),
            headers: [id("customer-id"), id("order-id")],
            body,
            json: None,
        };
        if searched.shop.is_empty() && is_compliance(&topic) {
            // Compliance webhooks were seen without the header.
            let shop = searched.json().and_then(|body| text_member(body, "shop_domain"));
            searched.shop = Cow::Owned(shop.unwrap_or_default().into_bytes());
        }
        searched
    }

    /// The body; `None` if it is no JSON.
    fn json(&mut self) -> Option<&Value> {
        if self.json.is_none() {
            self.json = serde_json::from_slice(without_mark(self.body)).ok();
        }
        self.json.as_ref()
    }
}

/// A text that is not empty.
fn text_member(value: &Value, name: &str) -> Option<String> {
    let text = value[name].as_str()?.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// An id as a number, as a text of digits, or as the end of a GraphQL id.
fn id_of(value: &Value) -> Option<u64> {
    match value {
        Value::Number(number) => number.as_u64(),
        Value::String(text) => {
            let end = text.rsplit('/').next().unwrap_or_default();
            end.split('?').next().unwrap_or_default().trim().parse().ok()
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
