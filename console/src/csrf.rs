//! Token of a session in each form. A page of another site can make a browser send a form, but it can't
//! read the token.
//!
//! The origin of a change is checked too (`origin.rs`), and the cookie is `SameSite=Strict`: each of the three
//! would do alone. The login form has no session yet; its origin is what keeps others from logging a browser in.

use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use maud::{Markup, html};

use crate::access::{Caller, Credential};
use crate::problem::ProblemDetails;

/// Field of every form.
pub const FIELD: &str = "csrf";
/// Header for scripts of our pages.
pub const HEADER: &str = "x-csrf-token";
/// Media type of a form. Of any other body, only the header counts.
const FORM: &str = "application/x-www-form-urlencoded";

/// Hidden field for a form of this caller. Every form holds it.
pub fn field(caller: &Caller) -> Markup {
    html! {
        @if let Some(session) = &caller.session {
            input type="hidden" name=(FIELD) value=(session.token());
        }
    }
}

/// Refuses a change without the token of the caller's session.
///
/// # Errors
/// The problem to answer with.
pub(crate) fn ensure_token(
    caller: &Caller,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<(), ProblemDetails> {
    if caller.credential == Credential::Bearer {
        return Ok(());
    }
    let given = match headers.get(HEADER) {
        Some(value) => Some(value.as_bytes()),
        None => is_form(headers).then(|| of_form(body)).flatten(),
    };
    let fits = |given: &[u8]| caller.session.as_ref().is_some_and(|key| key.is_token(given));
    if given.is_some_and(fits) {
        return Ok(());
    }
    Err(ProblemDetails::forbidden(
        "this form is of another session, or was made before the console started again: open the page again",
    ))
}

fn is_form(headers: &HeaderMap) -> bool {
    let media_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let name = media_type.and_then(|text| text.split(';').next());
    name.is_some_and(|name| name.trim().eq_ignore_ascii_case(FORM))
}

/// The token in a form. Its letters need no escapes.
fn of_form(body: &[u8]) -> Option<&[u8]> {
    let prefix = [FIELD.as_bytes(), b"="].concat();
    body.split(|byte| *byte == b'&').find_map(|pair| pair.strip_prefix(prefix.as_slice()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::{Role, SessionKey};

    fn caller(session: Option<SessionKey>) -> Caller {
        Caller {
            name: "mia".to_owned(),
            role: Role::Admin,
            sees_personal_data: false,
            credential: Credential::Ambient,
            session,
        }
    }

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn a_form_holds_the_token_of_its_own_session() {
        let key = SessionKey::random();
        let mia = caller(Some(key.clone()));
        let shown = field(&mia).into_string();
        assert!(shown.contains(&format!("value=\"{}\"", key.token())), "{shown}");
        let form = headers(&[("content-type", "application/x-www-form-urlencoded; charset=utf-8")]);
        let body = format!("expected=3&csrf={}&all=1", key.token());
        assert!(ensure_token(&mia, &form, body.as_bytes()).is_ok());
        let other = SessionKey::random().token();
        for body in ["", "csrf=", "csrf", "xcsrf=1", &format!("csrf={other}"), &key.token()] {
            assert!(ensure_token(&mia, &form, body.as_bytes()).is_err(), "{body}");
        }
    }

    #[test]
    fn a_body_that_is_no_form_needs_the_header() {
        let key = SessionKey::random();
        let mia = caller(Some(key.clone()));
        let body = format!("csrf={}", key.token());
        for media_type in ["text/plain", "application/json", "multipart/form-data"] {
            let plain = headers(&[("content-type", media_type)]);
            assert!(ensure_token(&mia, &plain, body.as_bytes()).is_err(), "{media_type}");
        }
        assert!(ensure_token(&mia, &HeaderMap::new(), body.as_bytes()).is_err());
        let named = headers(&[(HEADER, &key.token())]);
        assert!(ensure_token(&mia, &named, b"{}").is_ok());
        // A wrong header is not made good by the form.
        let form = "application/x-www-form-urlencoded";
        let wrong = headers(&[(HEADER, "x"), ("content-type", form)]);
        assert!(ensure_token(&mia, &wrong, body.as_bytes()).is_err());
    }

    #[test]
    fn a_bearer_needs_no_token_and_nobody_else_goes_without() {
        assert!(ensure_token(&caller(None), &HeaderMap::new(), b"csrf=").is_err());
        let bearer = Caller { credential: Credential::Bearer, ..caller(None) };
        assert!(ensure_token(&bearer, &HeaderMap::new(), b"").is_ok());
        assert_eq!(field(&bearer).into_string(), "");
    }
}
