//! Common parts of the tests of all pages: callers, hostile strings, and rules that hold for every page.

use crate::access::{Caller, Credential, Role, SessionKey};

/// A string that leaves a text, an attribute, a comment, a script or a style, wherever it is not escaped.
pub(super) const HOSTILE: &str = r#"'"></a></script></style>--><img src=x onerror=alert(1)><script>alert(2)</script>&#x3c;${7*7}{{7*7}}"#;

/// A hostile string, owned.
pub(super) fn hostile() -> String {
    HOSTILE.to_owned()
}

/// A caller with a role, without personal data.
pub(super) fn caller(role: Role) -> Caller {
    Caller {
        name: hostile(),
        role,
        sees_personal_data: role == Role::Admin,
        credential: Credential::Session,
        session: Some(SessionKey::random()),
    }
}

/// Checks the rules of every page: nothing inline, nothing unescaped, no other host, a CSRF field in each form that
/// changes something, a label for each field, and no id twice.
#[track_caller]
pub(super) fn assert_hygiene(page: &str) {
    for unwanted in ["<img", "<script>", " style=", "javascript:", "src=x onerror=alert(1)>"] {
        assert!(!page.contains(unwanted), "{unwanted} is there: {page}");
    }
    for (_, tag) in tags(page) {
        let name = tag.split([' ', '>']).next().unwrap_or_default();
        assert!(!outside_quotes(tag).contains(" on"), "a handler in {tag}");
        if ["a", "form", "script", "link"].contains(&name) {
            assert!(!tag.contains("=\"//") && !tag.contains("=\"http"), "another host: {tag}");
        }
        if ["input", "select", "textarea"].contains(&name) && !tag.contains("type=\"hidden\"") {
            let id = attribute(tag, "id").unwrap_or_else(|| panic!("no id, so no label: {tag}"));
            assert!(page.contains(&format!("for=\"{id}\"")), "no label: {tag}");
        }
    }
    for form in page.split("<form").skip(1) {
        let form = form.split("</form>").next().unwrap_or_default();
        let is_login = form.contains("action=\"/login\"");
        if form.contains("method=\"post\"") && !is_login {
            assert!(form.contains("name=\"csrf\""), "no CSRF field: {form}");
        }
    }
    let mut ids: Vec<_> = tags(page).filter_map(|(_, tag)| attribute(tag, "id")).collect();
    let all = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), all, "an id is there twice: {page}");
}

/// Checks that every number shown large is a link.
#[track_caller]
pub(super) fn assert_numbers_link(page: &str) {
    for (_, tag) in tags(page).filter(|(_, tag)| tag.contains("class=\"value\"")) {
        assert!(tag.starts_with("a class=\"value\" href=\""), "no link: {tag}");
    }
}

/// Opening tags with their places.
fn tags(page: &str) -> impl Iterator<Item = (usize, &str)> {
    page.match_indices('<').filter_map(|(place, _)| {
        let tag = &page[place + 1..];
        let is_opening = tag.starts_with(|first: char| first.is_ascii_alphabetic());
        is_opening.then(|| (place, &tag[..tag.find('>').unwrap_or(tag.len())]))
    })
}

fn attribute<'a>(tag: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = tag.split_once(&format!(" {name}=\""))?;
    rest.split('"').next()
}

fn outside_quotes(tag: &str) -> String {
    tag.split('"').step_by(2).collect()
}
