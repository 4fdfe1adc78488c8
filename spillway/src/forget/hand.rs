//! Orders by hand: as text, so that a purge which is cut off is finished by the next run of `--due`.

use serde_json::{Value, json};
use spillway_webhook::redaction::Person;
use spillway_webhook::{Redaction, StreamId, stable_hash};

/// Order of an operator: who is meant, and up to which entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HandOrder {
    /// Domain of the shop.
    pub shop: String,
    /// Name of one app; `None` for all of them.
    pub app: Option<String>,
    /// The customer; `None` for all of the shop.
    pub person: Option<Person>,
    /// Entry up to which everything is meant.
    pub through: StreamId,
}

impl HandOrder {
    /// The redaction that is carried out.
    ///
    /// # Errors
    /// A sentence, if it names nobody.
    pub(crate) fn redaction(&self) -> Result<Redaction, String> {
        let redaction = match &self.person {
            Some(person) => Redaction::of_person(self.shop.clone(), person.clone())
                .map_err(|error| error.to_string())?,
            None => Redaction::of_shop(self.shop.clone()),
        };
        Ok(match &self.app {
            Some(app) => redaction.for_app(Some(app.clone())),
            None => redaction,
        })
    }

    /// Number of the order. A later one for the same customer has another: a purge that carries out this one knows
    /// nothing of what came since.
    pub(super) fn number(&self) -> u64 {
        stable_hash::of(&[self.to_json().as_bytes()])
    }

    /// The order as text.
    pub(crate) fn to_json(&self) -> String {
        let person = self.person.as_ref().map(|person| {
            json!({
                "id": person.id, "email": person.email, "phone": person.phone,
                "orders": person.orders,
            })
        });
        let through = self.through.to_string();
        json!({ "shop": self.shop, "app": self.app, "person": person, "through": through })
            .to_string()
    }

    /// Reads the text. `None` if it is none.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let read: Value = serde_json::from_str(text).ok()?;
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let person = match &read["person"] {
            Value::Null => None,
            person => Some(Person {
                id: person["id"].as_u64(),
                email: text(&person["email"]),
                phone: text(&person["phone"]),
                orders: person["orders"].as_array()?.iter().filter_map(Value::as_u64).collect(),
            }),
        };
        Some(Self {
            shop: text(&read["shop"])?,
            app: text(&read["app"]),
            person,
            through: read["through"].as_str()?.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_read_as_it_was_written() {
        let person = Person { id: Some(12), email: None, phone: None, orders: vec![u64::MAX, 7] };
        for person in [None, Some(person)] {
            for app in [None, Some("one".to_owned())] {
                let order = HandOrder {
                    shop: "a.example".to_owned(),
                    app,
                    person: person.clone(),
                    through: StreamId { ms: 5, seq: 2 },
                };
                assert_eq!(HandOrder::parse(&order.to_json()), Some(order.clone()));
                assert!(order.redaction().is_ok());
                let later = HandOrder { through: StreamId { ms: 6, seq: 0 }, ..order.clone() };
                assert_ne!(order.number(), later.number(), "both are carried out");
            }
        }
        assert_eq!(HandOrder::parse("{}"), None);
    }
}
