//! Redaction: the person or the shop whose data is to be forgotten, and the webhooks that hold it.
//!
//! Shopify sends `customers/redact` and `shop/redact`. Their bodies name a shop, and a customer by id, email
//! address, phone number and orders. A webhook holds data of a customer if it is of the same shop, and one of
//! these is true:
//! - A member that `IDS` lists holds the id of the customer or of one of the orders.
//! - A text anywhere in it holds the email address, the phone number, or the customer or an order as a GraphQL id.
//! - A header names the customer or one of the orders as its resource.
//!
//! The address and the number alone count only if the webhook names no other customer: one text may be of many, and
//! what has only been typed in may be of anybody. [`MatchedBy`] tells which of them it was. Id 0, a number of one
//! repeated digit and the like name nobody.
//!
//! A body that is no JSON is searched byte by byte. A shop's redaction means everything of the shop. Where a receiver
//! serves several apps, a redaction is of one app, and means only what that app received.
//!
//! Only the body of a redaction is signed. So its topic and its shop count only as far as the body agrees.

mod text;

use std::borrow::Cow;

use serde_json::Value;

use self::text::{holds_email, holds_id, holds_number, holds_phone};
pub use self::text::{is_email, is_phone};
use crate::received::APP_HEADER_NAME;
use crate::shopify::{Headers, is_compliance, resource_kind, without_mark};

/// Fewest digits of an id that is searched for in bytes that are no JSON. Shorter ones occur by chance.
const DIGITS_MIN: usize = 6;

/// Data that is to be forgotten.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redaction {
    shop: String,
    apps: MeantApps,
    /// `None` for all of the shop.
    person: Option<Person>,
}

/// Apps whose webhooks are meant.
#[derive(Debug, Clone, PartialEq, Eq)]
enum MeantApps {
    All,
    /// The app of this name; `None` for webhooks that name no app.
    One(Option<String>),
}

/// Sign by which a webhook holds data that is to be forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MatchedBy {
    /// An id, or the shop where all of it is meant.
    Id,
    /// The email address or the phone number alone. Another webhook may show the same text.
    Text,
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
    /// There is no shop in its body.
    #[error("its body names no shop_domain")]
    NoShop,
    /// Only the body is signed.
    #[error("the header X-Shopify-Shop-Domain names another shop than the signed body")]
    OtherShop,
    /// Only the body is signed, and the topic is a header.
    #[error("the signed body is not one of this topic")]
    OtherTopic,
    /// There is nothing in it by which a customer is known.
    #[error("it names no customer")]
    NoPerson,
}

/// A webhook that is searched. Its body is parsed once, for all redactions.
pub struct SearchedWebhook<'a> {
    shop: Cow<'a, [u8]>,
    app: Option<&'a [u8]>,
    kind: String,
    /// Ids of customer and order that headers name.
    headers: [Option<u64>; 2],
    body: &'a [u8],
    json: Option<Value>,
}

/// Signs of a person that a webhook shows.
#[derive(Debug, Clone, Copy, Default)]
struct FoundSigns {
    /// An id of the customer or of an order.
    has_id: bool,
    /// The address or the number.
    has_text: bool,
    /// An id of another customer, where ids of customers stand.
    has_other_customer: bool,
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
    /// Redaction of everything of a shop, whichever app it was sent to.
    pub fn of_shop(shop: impl Into<String>) -> Self {
        Self { shop: shop.into(), apps: MeantApps::All, person: None }
    }

    /// Redaction of a customer, whichever app their data was sent to. What names nobody is left out of it.
    ///
    /// # Errors
    /// [`NotARedaction::NoPerson`] if there is nothing by which the customer is known.
    pub fn of_person(shop: impl Into<String>, person: Person) -> Result<Self, NotARedaction> {
        let person = person.that_names_somebody();
        if person == Person::default() {
            return Err(NotARedaction::NoPerson);
        }
        Ok(Self { shop: shop.into(), apps: MeantApps::All, person: Some(person) })
    }

    /// The same for one app of APPS_FILE; `None` for webhooks that name no app.
    #[must_use]
    pub fn for_app(mut self, app: Option<String>) -> Self {
        self.apps = MeantApps::One(app);
        self
    }

    /// Reads the webhook that asks for it. It is for the app of that webhook.
    ///
    /// # Errors
    /// [`NotARedaction`]. The topic and the shop in the headers are not signed: a body that does not suit them is
    /// none.
    pub fn parse(headers: &impl Headers, body: &[u8]) -> Result<Self, NotARedaction> {
        let topic = headers.topic().unwrap_or_default();
        if !is_redaction(&topic) {
            return Err(NotARedaction::Topic);
        }
        let body: Value = serde_json::from_slice(without_mark(body))
            .ok()
            .filter(Value::is_object)
            .ok_or(NotARedaction::Body)?;
        let shop = text_member(&body, "shop_domain").ok_or(NotARedaction::NoShop)?;
        // Compliance webhooks were seen without the header.
        if headers.shop().is_some_and(|header| !header.eq_ignore_ascii_case(shop.as_bytes())) {
            return Err(NotARedaction::OtherShop);
        }
        let redaction = match is_body_of_topic(&topic, &body) {
            false => return Err(NotARedaction::OtherTopic),
            true if *topic == *b"shop/redact" => Self::of_shop(shop),
            true => Self::of_person(shop, Person::of_body(&body))?,
        };
        let app = headers.value(APP_HEADER_NAME);
        Ok(redaction.for_app(app.map(|app| String::from_utf8_lossy(app).into_owned())))
    }

    /// Domain of the shop.
    pub fn shop(&self) -> &str {
        &self.shop
    }

    /// True if all of the shop is to be forgotten.
    pub fn is_of_shop(&self) -> bool {
        self.person.is_none()
    }

    /// Sign by which the webhook holds data that is to be forgotten; `None` if it holds none.
    pub fn matched(&self, webhook: &mut SearchedWebhook<'_>) -> Option<MatchedBy> {
        let is_of_app = match &self.apps {
            MeantApps::All => true,
            MeantApps::One(app) => app.as_deref().map(str::as_bytes) == webhook.app,
        };
        if !is_of_app || !webhook.shop.eq_ignore_ascii_case(self.shop.as_bytes()) {
            return None;
        }
        let Some(person) = &self.person else { return Some(MatchedBy::Id) };
        let [customer, order] = webhook.headers;
        if person.is_named(IdOwner::Customer, customer) || person.is_named(IdOwner::Order, order) {
            return Some(MatchedBy::Id);
        }
        let has_other_customer = person.is_other(customer);
        let mut signs = FoundSigns { has_other_customer, ..FoundSigns::default() };
        let kind = webhook.kind.clone();
        let bytes = webhook.body;
        match webhook.json() {
            Some(body) => person.look_at(body, &kind, Parent::Root, &mut signs),
            None => person.look_at_text(&String::from_utf8_lossy(bytes), true, &mut signs),
        }
        signs.matched()
    }

    /// True if the webhook asks to forget the same customer, or the same shop, of the same app: it was sent twice.
    pub fn is_repeated_by(&self, headers: &impl Headers, body: &[u8]) -> bool {
        let Ok(other) = Self::parse(headers, body) else { return false };
        let is_same_person = match (&self.person, &other.person) {
            (None, None) => true,
            (Some(one), Some(other)) => one.id.map_or(one == other, |id| other.id == Some(id)),
            _ => false,
        };
        is_same_person
            && self.shop.eq_ignore_ascii_case(&other.shop)
            && (self.apps == MeantApps::All || self.apps == other.apps)
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

impl FoundSigns {
    /// Ids tell surely. A text of somebody is one of somebody else if the webhook names that one.
    fn matched(self) -> Option<MatchedBy> {
        match self {
            Self { has_id: true, .. } => Some(MatchedBy::Id),
            Self { has_text: true, has_other_customer: false, .. } => Some(MatchedBy::Text),
            _ => None,
        }
    }
}

impl Person {
    /// Customer of a body of `customers/redact`.
    fn of_body(body: &Value) -> Self {
        let customer = &body["customer"];
        let orders = body["orders_to_redact"].as_array().map(Vec::as_slice).unwrap_or_default();
        Self {
            id: id_of(&customer["id"]),
            email: text_member(customer, "email"),
            phone: text_member(customer, "phone"),
            orders: orders.iter().filter_map(id_of).collect(),
        }
    }

    /// The same without placeholders.
    fn that_names_somebody(self) -> Self {
        let Self { id, email, phone, mut orders } = self;
        orders.retain(|order| *order != 0);
        Self {
            id: id.filter(|id| *id != 0),
            email: email.filter(|email| is_email(email)),
            phone: phone.filter(|phone| is_phone(phone)),
            orders,
        }
    }

    fn is_named(&self, owner: IdOwner, id: Option<u64>) -> bool {
        match owner {
            IdOwner::Customer => id.is_some() && id == self.id,
            IdOwner::Order => id.is_some_and(|id| self.orders.contains(&id)),
        }
    }

    /// True if this is the id of another customer, as far as the own one is known.
    fn is_other(&self, customer: Option<u64>) -> bool {
        let own = self.id;
        own.is_some() && customer.is_some_and(|id| id != 0 && Some(id) != own)
    }

    /// Looks for signs of the person. `parent` is the place of the value in its body.
    fn look_at(&self, value: &Value, kind: &str, parent: Parent, signs: &mut FoundSigns) {
        match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
            Value::String(text) => self.look_at_text(text, false, signs),
            // An element is in the same place as its list.
            Value::Array(elements) => {
                elements.iter().for_each(|element| self.look_at(element, kind, parent, signs));
            }
            Value::Object(members) => {
                for (name, value) in members {
                    self.look_at_member(kind, parent, (name.as_str(), value), signs);
                    self.look_at_text(name, false, signs);
                    self.look_at(value, kind, named(name), signs);
                    if signs.has_id {
                        return;
                    }
                }
            }
        }
    }

    fn look_at_member(
        &self,
        kind: &str,
        parent: Parent,
        (name, value): (&str, &Value),
        signs: &mut FoundSigns,
    ) {
        let known = IDS.iter().filter(|known| {
            known.member == name
                && known.kind.is_none_or(|known| known == kind)
                && (known.parent == Parent::Any || known.parent == parent)
        });
        for known in known {
            let id = id_of(value);
            signs.has_id |= self.is_named(known.owner, id);
            signs.has_other_customer |= known.owner == IdOwner::Customer && self.is_other(id);
        }
    }

    /// Looks at a text. A body that is no JSON is one, in which ids are numbers.
    fn look_at_text(&self, text: &str, is_body: bool, signs: &mut FoundSigns) {
        signs.has_text |= self.is_text_in(text);
        signs.has_id |= self.id.is_some_and(|id| holds_id(text, "Customer", id))
            || self.orders.iter().any(|order| holds_id(text, "Order", *order))
            || (is_body && self.is_number_in(text));
    }

    fn is_text_in(&self, text: &str) -> bool {
        self.email.as_ref().is_some_and(|email| holds_email(text, email))
            || self.phone.as_ref().is_some_and(|phone| holds_phone(text, phone))
    }

    /// True if a text that is no JSON holds one of the ids.
    fn is_number_in(&self, text: &str) -> bool {
        let ids = self.id.iter().chain(&self.orders).map(u64::to_string);
        let mut numbers = ids.filter(|number| number.len() >= DIGITS_MIN);
        numbers.any(|number| holds_number(text, &number))
    }

    fn is_in_bytes(&self, bytes: &[u8]) -> bool {
        // Not UTF-8 here and there: what is searched for is.
        let text = String::from_utf8_lossy(bytes);
        self.is_text_in(&text) || self.is_number_in(&text)
    }
}

/// True if a body is one that Shopify sends with this topic. A request of a customer's data names the same customer
/// as a redaction does.
fn is_body_of_topic(topic: &[u8], body: &Value) -> bool {
    let has = |member: &str| body.get(member).is_some();
    if has("orders_requested") || has("data_request") {
        return false;
    }
    match topic {
        b"shop/redact" => !has("customer") && !has("orders_to_redact"),
        _ => body["customer"].is_object() && body["orders_to_redact"].is_array(),
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
            app: headers.value(APP_HEADER_NAME),
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
