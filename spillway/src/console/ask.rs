//! Questions and orders of pages and of the API: from a query to the verb that answers it, and back to a model.

pub(super) mod consumers;
pub(super) mod controls;
pub(super) mod dead;
pub(super) mod doctor;
pub(super) mod gaps;
pub(super) mod history;
pub(super) mod lanes;
pub(super) mod orders;
pub(super) mod top;
pub(super) mod webhooks;
mod work;

use spillway_console::ProblemDetails;
use spillway_console::model::change::WebhookSelection;
use spillway_queue::controls::Filter;

use crate::filter::{FILTERS, FilterArguments};

/// Entries of a page, at most.
const LIMIT_MAX: u32 = 200;
/// Entries of a page, if nobody says it.
const LIMIT: u32 = 50;
const _: () = assert!(LIMIT <= LIMIT_MAX, "a page has a bound");

/// A value of a query. An empty one, as that of an empty field of a form, is none.
fn given(value: Option<&String>) -> Option<&str> {
    value.map(|value| value.trim()).filter(|value| !value.is_empty())
}

/// Number of entries of a page.
fn page_limit(asked: Option<u32>, default: u32) -> usize {
    usize::try_from(asked.unwrap_or(default).clamp(1, LIMIT_MAX)).unwrap_or(1)
}

/// Flags of a selection.
fn flags_of(selection: &WebhookSelection) -> FilterArguments {
    let WebhookSelection { shop, topic, resource, app, webhook_id, .. } = selection.clone();
    FilterArguments { shop, topic, app, resource, webhook_id }
}

/// Filter of a selection without times.
fn filter_of(selection: &WebhookSelection) -> Result<Filter, ProblemDetails> {
    let has_times =
        given(selection.since.as_ref()).is_some() || given(selection.until.as_ref()).is_some();
    if has_times {
        let told = "since and until select dead letters and archived webhooks only: leave them out";
        return Err(ProblemDetails::bad_request(told));
    }
    ensure_no_ids(selection)?;
    Ok(flags_of(selection).checked()?)
}

/// Checks that a selection that is not of dead letters has no ids.
fn ensure_no_ids(selection: &WebhookSelection) -> Result<(), ProblemDetails> {
    if selection.ids.is_some() {
        return Err(ProblemDetails::bad_request("ids choose dead letters only: leave them out"));
    }
    Ok(())
}

/// Checks that no field of a selection is empty: an empty one selects nothing, and a script whose variable is not set
/// would select more than it means. Forms leave out what nobody filled in.
fn ensure_filled(selection: &WebhookSelection) -> Result<(), ProblemDetails> {
    let WebhookSelection { shop, topic, resource, app, webhook_id, ids, since, until, all: _ } =
        selection;
    let is_blank = |ids: &Vec<String>| ids.is_empty() || ids.iter().any(|id| id.trim().is_empty());
    if ids.as_ref().is_some_and(is_blank) {
        let told = "ids is empty, or one of them is: give Spillway-Ids, or leave it out";
        return Err(ProblemDetails::bad_request(told));
    }
    let fields = [
        ("shop", shop),
        ("topic", topic),
        ("resource", resource),
        ("app", app),
        ("webhook_id", webhook_id),
        ("since", since),
        ("until", until),
    ];
    let mut fields = fields.into_iter();
    let empty = fields.find(|(_, text)| text.as_deref().is_some_and(|text| text.trim().is_empty()));
    match empty {
        None => Ok(()),
        Some((name, _)) => Err(ProblemDetails::bad_request(format!(
            "{name} is empty: give a value, or leave it out"
        ))),
    }
}

/// Problem for a selection of everything that does not say so.
fn needs_all() -> ProblemDetails {
    ProblemDetails::bad_request(format!(
        "give a filter ({}), or \"all\": true",
        FILTERS.replace("--", "").replace('-', "_")
    ))
}

/// Problem for a selection of all dead letters that does not say so.
fn needs_letters() -> ProblemDetails {
    let ProblemDetails { detail, .. } = needs_all();
    ProblemDetails::bad_request(format!("choose dead letters (ids), or {detail}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_bounded() {
        let limits = [None, Some(0), Some(7), Some(9_999)].map(|asked| page_limit(asked, LIMIT));
        assert_eq!(limits, [50, 1, 7, 200]);
    }

    #[test]
    fn a_selection_is_checked_as_flags_are() {
        let some = |text: &str| Some(text.to_owned());
        let selection = WebhookSelection { shop: some("a.example"), ..Default::default() };
        assert_eq!(filter_of(&selection).expect("good").to_string(), "shop a.example");
        let bad = [
            WebhookSelection { topic: some("order"), ..Default::default() },
            WebhookSelection { since: some("2h"), ..Default::default() },
        ];
        for selection in bad {
            let problem = filter_of(&selection).expect_err("it is refused");
            assert_eq!(problem.code, "bad_request");
        }
        for empty in ["", " "] {
            let selection = WebhookSelection { topic: some(empty), ..Default::default() };
            let problem = ensure_filled(&selection).expect_err("it is empty");
            assert!(problem.detail.contains("topic is empty"), "{}", problem.detail);
        }
        assert!(ensure_filled(&WebhookSelection::default()).is_ok());
        let of = |ids: &[&str]| {
            let ids = ids.iter().map(|id| (*id).to_owned()).collect();
            WebhookSelection { ids: Some(ids), ..WebhookSelection::default() }
        };
        assert!(ensure_filled(&of(&["a", "b"])).is_ok());
        for empty in [&["a", " "][..], &[]] {
            let problem = ensure_filled(&of(empty)).expect_err("it chooses nothing");
            assert!(problem.detail.contains("ids is empty"), "{}", problem.detail);
        }
        let problem = filter_of(&of(&["a"])).expect_err("it is for dead letters");
        assert!(problem.detail.contains("dead letters only"), "{}", problem.detail);
        assert!(needs_letters().detail.contains("(ids), or give a filter"));
        assert!(needs_all().detail.contains("shop, topic, resource, app, webhook_id"));
    }
}
