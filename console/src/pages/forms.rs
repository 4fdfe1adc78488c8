//! Forms that order a change: their fields, as they are sent and as a page repeats them.

use maud::{Markup, html};
use serde::{Deserialize, Serialize};

use super::figures::counted;
use crate::model::change::{ChangeRequest, PauseRequest, WebhookSelection};
use crate::problem::ProblemDetails;

/// Field with the ids of chosen dead letters. Each box that is checked sends one, and a hidden field has all of them.
pub(super) const IDS: &str = "ids";
/// Value of `all` for the pause of the whole consumer alone.
const WHOLE: &str = "whole";

/// Fields of a form that orders a change, as they are sent: those of a selection, and how to change it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ChangeForm {
    /// Consumer whose webhooks they are.
    pub consumer: Option<String>,
    /// Webhooks of this shop.
    pub shop: Option<String>,
    /// Webhooks of this topic.
    pub topic: Option<String>,
    /// Webhooks about this resource.
    pub resource: Option<String>,
    /// Webhooks for this app.
    pub app: Option<String>,
    /// Webhook with this id.
    pub webhook_id: Option<String>,
    /// Dead letters with these Spillway-Ids, with spaces between them.
    pub ids: Option<String>,
    /// Given up at or after this time.
    pub since: Option<String>,
    /// Given up at or before this time.
    pub until: Option<String>,
    /// `true` for all, where nothing else is given; `whole` for the pause of the whole consumer alone.
    pub all: Option<String>,
    /// Confirmation of a dry run. Without it, they are only counted.
    #[serde(flatten)]
    pub counted: CountedFields,
    /// Manner of the change.
    #[serde(flatten)]
    pub manner: MannerFields,
}

/// Fields that say in which manner a change is made.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MannerFields {
    /// Number per second.
    pub rate: Option<String>,
    /// `true` for those of compliance topics, too.
    pub force: Option<String>,
}

/// Fields that confirm what a dry run counted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CountedFields {
    /// Number of webhooks, as the caller typed it.
    pub expected: Option<String>,
    /// Digest of these webhooks.
    pub digest: Option<String>,
}

/// Parameters that pages have beside those of their lists.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ViewQuery {
    /// Code of the change that led to this page, such as `paused`.
    pub told: Option<String>,
    /// Id of a webhook to open.
    pub id: Option<String>,
    /// Domain of a shop to open.
    pub name: Option<String>,
    /// Consumer of the one thing that is shown.
    pub consumer: Option<String>,
    /// Cursor with which a search goes on.
    pub after: Option<String>,
}

impl ChangeForm {
    /// Consumer whose webhooks they are.
    ///
    /// # Errors
    /// If none is given.
    pub fn consumer(&self) -> Result<&str, ProblemDetails> {
        self.consumer.as_deref().ok_or_else(|| ProblemDetails::bad_request("name a consumer"))
    }

    /// Order of a change.
    ///
    /// # Errors
    /// If a field should be a number and is none.
    pub fn change(&self) -> Result<ChangeRequest, ProblemDetails> {
        let expected = self.counted.expected.as_deref().map(count).transpose()?;
        let rate = self.manner.rate.as_deref().map(count).transpose()?;
        let rate = rate.map(|rate| {
            u32::try_from(rate)
                .map_err(|_| ProblemDetails::bad_request(format!("{rate} per second is too many")))
        });
        Ok(ChangeRequest {
            selection: self.selection(),
            expected,
            digest: self.counted.digest.clone(),
            rate: rate.transpose()?,
            force: is_true(self.manner.force.as_deref()),
        })
    }

    /// Order to pause or to resume.
    pub fn pause(&self) -> PauseRequest {
        let whole = self.all.as_deref() == Some(WHOLE);
        PauseRequest { selection: self.selection(), whole }
    }

    /// Webhooks that are meant.
    fn selection(&self) -> WebhookSelection {
        WebhookSelection {
            shop: self.shop.clone(),
            topic: self.topic.clone(),
            resource: self.resource.clone(),
            app: self.app.clone(),
            webhook_id: self.webhook_id.clone(),
            ids: self.ids.as_deref().map(|ids| ids.split_whitespace().map(str::to_owned).collect()),
            since: self.since.clone(),
            until: self.until.clone(),
            all: is_true(self.all.as_deref()),
        }
    }

    /// The same form with `all`, if it selects nothing.
    #[must_use]
    pub(super) fn or_all(mut self) -> Self {
        let is_empty = self.named().iter().all(|(_, _, value)| value.is_none());
        self.all = is_empty.then(|| "true".to_owned());
        self
    }

    /// Selection of a pause that is given in words, such as `shop a.example, topic orders/*`. `None` if a value could be
    /// read in two ways.
    pub(super) fn of_pause(consumer: &str, words: &str) -> Option<Self> {
        let mut form = Self { consumer: Some(consumer.to_owned()), ..Self::default() };
        // The pause of the whole consumer has no filter. Others stay when it ends.
        if words == "everything" {
            form.all = Some(WHOLE.to_owned());
            return Some(form);
        }
        for part in words.split(", ") {
            let (name, value) = part.split_once(' ')?;
            let member = match name {
                "shop" => &mut form.shop,
                "topic" => &mut form.topic,
                "app" => &mut form.app,
                "resource" => &mut form.resource,
                "webhook-id" => &mut form.webhook_id,
                _ => return None,
            };
            if member.replace(value.to_owned()).is_some() {
                return None;
            }
        }
        Some(form)
    }

    /// Fields of the selection, each with its name and its label.
    fn named(&self) -> [(&'static str, &'static str, Option<&str>); 8] {
        [
            ("shop", "Shop", self.shop.as_deref()),
            ("topic", "Topic", self.topic.as_deref()),
            ("resource", "Resource", self.resource.as_deref()),
            ("app", "App", self.app.as_deref()),
            ("webhook_id", "Webhook", self.webhook_id.as_deref()),
            (IDS, "Selected", self.ids.as_deref()),
            ("since", "Since", self.since.as_deref()),
            ("until", "Until", self.until.as_deref()),
        ]
    }

    /// Hidden fields that repeat the selection, with the consumer, the rate and `force`.
    pub(super) fn hidden(&self) -> Markup {
        let selection = self.named().map(|(name, _, value)| (name, value));
        let how = [
            ("consumer", self.consumer.as_deref()),
            ("all", self.all.as_deref()),
            ("rate", self.manner.rate.as_deref()),
            ("force", self.manner.force.as_deref()),
        ];
        html! {
            @for (name, value) in selection.into_iter().chain(how) {
                @if let Some(value) = value { input type="hidden" name=(name) value=(value); }
            }
        }
    }

    /// The selection in words, for the one who confirms it.
    pub(super) fn description(&self) -> Markup {
        let named = self.named();
        let given =
            || named.iter().filter_map(|&(name, label, value)| Some((label, shown(name, value?))));
        html! {
            dl.facts {
                @if let Some(consumer) = &self.consumer {
                    div { dt { "Consumer" } dd { (consumer) } }
                }
                @for (label, value) in given() { div { dt { (label) } dd { (value) } } }
                @if given().next().is_none() { div { dt { "Webhooks" } dd { "all" } } }
                @if let Some(rate) = &self.manner.rate { div { dt { "Per second" } dd { (rate) } } }
                @if is_true(self.manner.force.as_deref()) {
                    div { dt { "Compliance topics" } dd { "included" } }
                }
            }
        }
    }
}

/// Value of a field in words. Of chosen dead letters it is the number: the job names them.
fn shown(name: &str, value: &str) -> String {
    if name != IDS {
        return value.to_owned();
    }
    let number = value.split_whitespace().count();
    counted(u64::try_from(number).unwrap_or(u64::MAX), "dead letter")
}

/// A number as people type it: `1,234` too.
fn count(text: &str) -> Result<u64, ProblemDetails> {
    let digits: String = text.chars().filter(|letter| !matches!(letter, ',' | ' ')).collect();
    digits.parse().map_err(|_| {
        ProblemDetails::bad_request(format!("{text:?} is not a number: type digits, such as 1,234"))
    })
}

fn is_true(text: Option<&str>) -> bool {
    text == Some("true")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_taken_as_people_type_them() {
        let counted = CountedFields { expected: Some("1,234".to_owned()), digest: None };
        let form = ChangeForm {
            counted,
            manner: MannerFields { rate: Some("50".to_owned()), force: None },
            all: Some("true".to_owned()),
            ..ChangeForm::default()
        };
        let change = form.change().unwrap();
        assert_eq!((change.expected, change.rate), (Some(1_234), Some(50)));
        assert!(change.selection.all && !change.force);
        let counted = CountedFields { expected: Some("many".to_owned()), digest: None };
        let form = ChangeForm { counted, ..ChangeForm::default() };
        assert!(form.change().unwrap_err().detail.contains("\"many\" is not a number"));
        assert!(form.consumer().is_err());
    }

    #[test]
    fn an_empty_selection_says_all() {
        let form = ChangeForm::default().or_all();
        assert_eq!(form.all.as_deref(), Some("true"));
        let form = ChangeForm { shop: Some("a.example".to_owned()), ..form }.or_all();
        assert_eq!(form.all, None);
        let form = ChangeForm { ids: Some("a".to_owned()), ..ChangeForm::default() }.or_all();
        assert_eq!(form.all, None);
    }

    #[test]
    fn chosen_letters_are_repeated_and_counted_in_words() {
        let ids = Some("one \"><script> two".to_owned());
        let form = ChangeForm { ids, ..ChangeForm::default() };
        let text = form.hidden().into_string();
        assert!(text.contains(r#"name="ids" value="one &quot;&gt;&lt;script&gt; two""#), "{text}");
        let text = form.description().into_string();
        assert!(text.contains("<dt>Selected</dt><dd>3 dead letters</dd>"), "{text}");
        let ids = form.change().unwrap().selection.ids.unwrap();
        assert_eq!(ids, ["one", "\"><script>", "two"]);
    }

    #[test]
    fn a_pause_in_words_is_a_form_again() {
        let form = ChangeForm::of_pause("http", "shop a.example, topic orders/*").unwrap();
        assert_eq!(form.shop.as_deref(), Some("a.example"));
        assert_eq!(form.topic.as_deref(), Some("orders/*"));
        let form = ChangeForm::of_pause("http", "everything").unwrap();
        let whole = PauseRequest { whole: true, ..PauseRequest::default() };
        assert_eq!((form.pause(), form.consumer()), (whole, Ok("http")));
        assert_eq!(ChangeForm::of_pause("http", "resource a, b/7"), None);
        assert_eq!(ChangeForm::of_pause("http", "shop a, shop b"), None);
    }

    #[test]
    fn hidden_fields_repeat_the_form_and_escape_it() {
        let shop = Some("\"><script>".to_owned());
        let manner = MannerFields { rate: Some("5".to_owned()), force: None };
        let form = ChangeForm { shop, manner, ..ChangeForm::default() };
        let text = form.hidden().into_string();
        assert!(text.contains(r#"name="shop" value="&quot;&gt;&lt;script&gt;""#), "{text}");
        assert!(text.contains(r#"name="rate" value="5""#), "{text}");
        assert!(!form.description().into_string().contains("<script>"));
    }
}
