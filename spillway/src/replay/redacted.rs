//! People who are to be forgotten: their webhooks are not replayed.
//!
//! A redaction that was delivered is noted in Redis until it is carried out. From then on, the archive does not hold
//! what it means; before that, this module knows it.

use spillway_queue::redactions::{NotedRedaction, PendingRedactions};
use spillway_webhook::pack::{Pack, View};
use spillway_webhook::redaction::SearchedWebhook;
use spillway_webhook::{Position, Redaction, StreamId};

use crate::forget::hand::HandOrder;

/// Redactions that are not carried out.
#[derive(Debug, Clone, Default)]
pub(super) struct PendingPeople(Vec<PendingPerson>);

/// One redaction.
#[derive(Debug, Clone)]
struct PendingPerson {
    redaction: Redaction,
    /// Position of the redaction's own webhook, or the first one after an order by hand. What came later stays: the
    /// customer may have come back.
    before: Position,
}

impl PendingPeople {
    /// Reads the notes. One that cannot be read is reported: no purge can carry it out either.
    pub(super) fn of(pending: &PendingRedactions) -> Self {
        let mut people = Vec::new();
        for noted in &pending.noted {
            match person(noted) {
                Ok(person) => people.push(person),
                Err(error) => {
                    eprintln!("spillway: the redaction {} cannot be read: {error}", noted.webhook);
                }
            }
        }
        for noted in &pending.by_hand {
            let ordered = HandOrder::parse(&noted.order)
                .and_then(|order| Some((order.redaction().ok()?, order.through)));
            let Some((redaction, StreamId { ms, seq })) = ordered else {
                eprintln!("spillway: the order to forget {} cannot be read", noted.name);
                continue;
            };
            let before = Position::new(StreamId { ms, seq: seq.saturating_add(1) }, 0);
            people.push(PendingPerson { redaction, before });
        }
        Self(people)
    }

    /// True if a webhook holds data of somebody who is to be forgotten.
    pub(super) fn is_meant(&self, position: Position, view: &View<'_>) -> bool {
        let mut people = self.0.iter().filter(|person| position < person.before).peekable();
        if people.peek().is_none() {
            return false;
        }
        let mut webhook = SearchedWebhook::new(view, view.body);
        people.any(|person| person.redaction.matched(&mut webhook).is_some())
    }
}

fn person(noted: &NotedRedaction) -> Result<PendingPerson, String> {
    let pack = Pack::decode(&noted.pack).map_err(|error| error.to_string())?;
    if pack.count() != 1 {
        return Err("not a pack of one".to_owned());
    }
    let view = pack.view(0);
    let redaction = Redaction::parse(&view, view.body).map_err(|error| error.to_string())?;
    let before = Position::new(noted.webhook.entry, noted.webhook.index);
    Ok(PendingPerson { redaction, before })
}

#[cfg(test)]
mod tests {
    use spillway_queue::redactions::NotedOrder;

    use super::*;
    use crate::testing::{customer_pack, noted_redaction};

    #[test]
    fn webhooks_of_a_customer_who_is_to_be_forgotten_are_meant_up_to_the_redaction() {
        let noted = vec![noted_redaction("customers/redact"), noted_redaction("orders/create")];
        let people =
            PendingPeople::of(&PendingRedactions { noted, ..PendingRedactions::default() });
        assert_eq!(people.0.len(), 1, "the other one cannot be read");
        let of =
            |customer| Pack::decode(&customer_pack("orders/create", customer)).expect("a pack");
        let (hers, other) = (of(12), of(13));
        let at = |ms, seq, index| Position::new(StreamId { ms, seq }, index);
        assert!(people.is_meant(at(4, 9, 9), &hers.view(0)));
        assert!(people.is_meant(at(5, 2, 2), &hers.view(0)));
        assert!(!people.is_meant(at(4, 9, 9), &other.view(0)));
        assert!(!people.is_meant(at(5, 2, 3), &hers.view(0)), "itself");
        assert!(!people.is_meant(at(6, 0, 0), &hers.view(0)), "she came back");
        let order = HandOrder {
            shop: "a.example".to_owned(),
            app: None,
            person: None,
            through: StreamId { ms: 6, seq: 0 },
        };
        let noted = NotedOrder { name: "hand:1".to_owned(), order: order.to_json() };
        let by_hand = PendingPeople::of(&PendingRedactions {
            by_hand: vec![noted],
            ..PendingRedactions::default()
        });
        assert!(by_hand.is_meant(at(6, 0, 9), &other.view(0)));
        assert!(!by_hand.is_meant(at(6, 1, 0), &other.view(0)), "after the order");
        assert!(!PendingPeople::default().is_meant(at(4, 0, 0), &hers.view(0)));
    }
}
