//! Sessions of users, in memory. The id lies in a cookie of the browser; here is only its digest.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::http::header::{COOKIE, ORIGIN};
use axum::http::{HeaderMap, HeaderValue};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};

use crate::access::SessionKey;

/// Time without a request of the user after which a session ends.
const IDLE_MAX: Duration = Duration::from_secs(12 * 3600);
/// Time after which a session ends in any case.
const AGE_MAX: Duration = Duration::from_secs(7 * 24 * 3600);
/// Sessions at once: some 200 bytes each. Only a login opens one.
const SESSIONS_MAX: usize = 10_000;
/// Sessions of one user at once.
const USER_SESSIONS_MAX: usize = 20;
const _: () =
    assert!(USER_SESSIONS_MAX < SESSIONS_MAX, "one user never ends the sessions of others");
/// Name of the cookie. The browser takes the second one from this very host and by HTTPS only, so no neighbour
/// can put its own session there. Source: RFC 6265bis, cookie name prefixes.
const COOKIE_NAME: &str = "spillway";
const SECURE_COOKIE_NAME: &str = "__Host-spillway";

/// All open sessions.
#[derive(Debug, Default)]
pub struct Sessions(Mutex<HashMap<[u8; 32], OpenSession>>);

/// A session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OpenSession {
    /// Name of the user.
    pub user: String,
    /// Mark of the password by which it was opened.
    pub password_mark: [u8; 32],
    /// Key of its forms.
    pub key: SessionKey,
    opened: Instant,
    used: Instant,
}

/// Cookie of the sessions.
#[derive(Debug, Clone, Copy)]
pub struct SessionCookie {
    /// True if this process speaks TLS itself: then only the secure cookie counts.
    pub is_tls: bool,
}

impl OpenSession {
    fn has_ended(&self, now: Instant) -> bool {
        let since = |then| now.saturating_duration_since(then);
        since(self.used) >= IDLE_MAX || since(self.opened) >= AGE_MAX
    }
}

impl Sessions {
    /// Opens a session, and returns its id. An id is never taken from a browser, so nobody can prepare one
    /// for somebody else (session fixation).
    pub(crate) fn open(&self, user: &str, password_mark: [u8; 32], now: Instant) -> String {
        let id = URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>());
        let session = OpenSession {
            user: user.to_owned(),
            password_mark,
            key: SessionKey::random(),
            opened: now,
            used: now,
        };
        let mut open = self.lock();
        open.retain(|_, session| !session.has_ended(now));
        let own = open.values().filter(|session| session.user == user).count();
        if own >= USER_SESSIONS_MAX {
            close_oldest(&mut open, |session| session.user == user);
        } else if open.len() >= SESSIONS_MAX {
            close_oldest(&mut open, |_| true);
        }
        open.insert(digest(&id), session);
        id
    }

    /// The session of this id. `is_use` says that the user did something, and not a page that is merely open.
    pub(crate) fn find(&self, id: &str, is_use: bool, now: Instant) -> Option<OpenSession> {
        let mut open = self.lock();
        let key = digest(id);
        let session = open.get_mut(&key)?;
        if session.has_ended(now) {
            open.remove(&key);
            return None;
        }
        if is_use {
            session.used = now;
        }
        Some(session.clone())
    }

    /// Ends a session.
    pub(crate) fn close(&self, id: &str) {
        self.lock().remove(&digest(id));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<[u8; 32], OpenSession>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn digest(id: &str) -> [u8; 32] {
    Sha256::digest(id).into()
}

fn close_oldest(
    open: &mut HashMap<[u8; 32], OpenSession>,
    is_meant: impl Fn(&OpenSession) -> bool,
) {
    let meant = open.iter().filter(|(_, session)| is_meant(session));
    let oldest = meant.min_by_key(|(_, session)| session.used).map(|(key, _)| *key);
    if let Some(key) = oldest {
        open.remove(&key);
    }
}

impl SessionCookie {
    /// Id of the session that a browser names. A browser that sends two different ones sends one that a
    /// neighbour's page put there: neither counts.
    pub(crate) fn id(self, headers: &HeaderMap) -> Option<&str> {
        let secure = only(headers, SECURE_COOKIE_NAME);
        if self.is_tls || secure.is_some() { secure } else { only(headers, COOKIE_NAME) }
    }

    /// Header that gives a browser its session.
    pub(crate) fn set(self, id: &str, headers: &HeaderMap) -> HeaderValue {
        self.header(id, "", headers)
    }

    /// Header that takes the session from a browser.
    pub(crate) fn clear(self, headers: &HeaderMap) -> HeaderValue {
        self.header("", "; Max-Age=0", headers)
    }

    /// The cookie is secure if the browser reaches us by HTTPS, be it by way of a proxy: each of its forms
    /// says so (`Origin`).
    fn header(self, id: &str, more: &str, headers: &HeaderMap) -> HeaderValue {
        let origin = headers.get(ORIGIN).map(HeaderValue::as_bytes).unwrap_or_default();
        let is_https = self.is_tls || origin.starts_with(b"https://");
        let name = if is_https { SECURE_COOKIE_NAME } else { COOKIE_NAME };
        let secure = if is_https { "; Secure" } else { "" };
        let text = format!("{name}={id}; Path=/; HttpOnly; SameSite=Strict{secure}{more}");
        HeaderValue::from_str(&text).expect("BUG: an id is of plain letters")
    }
}

/// Value of a cookie, if all of this name have the same.
fn only<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let cookies = headers.get_all(COOKIE).into_iter().filter_map(|value| value.to_str().ok());
    let pairs = cookies.flat_map(|value| value.split(';')).filter_map(|pair| pair.split_once('='));
    let mut values = pairs.filter(|(key, _)| key.trim() == name).map(|(_, value)| value.trim());
    let first = values.next()?;
    values.all(|value| value == first).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARK: [u8; 32] = [7; 32];

    #[test]
    fn a_session_ends_when_it_is_idle_or_old_or_closed() {
        let sessions = Sessions::default();
        let start = Instant::now();
        let id = sessions.open("mia", MARK, start);
        let hour = Duration::from_secs(3600);
        let found = sessions.find(&id, true, start).expect("it is open");
        assert_eq!((found.user.as_str(), found.password_mark), ("mia", MARK));
        for hours in (11..7 * 24).step_by(11) {
            assert!(sessions.find(&id, true, start + hour * hours).is_some(), "{hours} h");
        }
        assert!(sessions.find(&id, true, start + AGE_MAX).is_none(), "it is a week old");
        let idle = sessions.open("mia", MARK, start);
        assert!(sessions.find(&idle, false, start + 11 * hour).is_some());
        assert!(sessions.find(&idle, true, start + IDLE_MAX).is_none(), "an open page is no use");
        let closed = sessions.open("mia", MARK, start);
        sessions.close(&closed);
        assert!(sessions.find(&closed, true, start).is_none());
        assert!(sessions.find("", true, start).is_none());
    }

    #[test]
    fn ids_are_ours_and_each_is_new() {
        let sessions = Sessions::default();
        let now = Instant::now();
        assert!(sessions.find("prepared-by-somebody", true, now).is_none());
        let one = sessions.open("mia", MARK, now);
        let other = sessions.open("mia", MARK, now);
        assert!(one != other && one.len() == 43);
        let key = |id: &str| sessions.find(id, true, now).map(|session| session.key);
        assert_ne!(key(&one), key(&other));
    }

    #[test]
    fn one_user_does_not_push_out_the_others() {
        let sessions = Sessions::default();
        let start = Instant::now();
        let mia = sessions.open("mia", MARK, start);
        let second = Duration::from_secs(1);
        let ids: Vec<String> =
            (1..=25).map(|at| sessions.open("leo", MARK, start + second * at)).collect();
        let now = start + second * 30;
        assert!(sessions.find(&mia, true, now).is_some());
        let open = ids.iter().filter(|id| sessions.find(id, true, now).is_some());
        assert_eq!(open.count(), USER_SESSIONS_MAX);
        assert!(sessions.find(&ids[0], true, now).is_none(), "the oldest is closed");
    }

    #[test]
    fn the_sessions_are_bounded_and_the_one_that_is_unused_longest_is_closed() {
        let sessions = Sessions::default();
        let start = Instant::now();
        let key = SessionKey::random();
        // Opened without `open`, which looks at all of them each time.
        for user in 0..SESSIONS_MAX {
            let user = user.to_string();
            let id = digest(&user);
            let key = key.clone();
            let session =
                OpenSession { user, password_mark: MARK, key, opened: start, used: start };
            sessions.lock().insert(id, session);
        }
        let now = start + Duration::from_secs(1);
        for user in 0..SESSIONS_MAX {
            if user != 7 {
                assert!(sessions.find(&user.to_string(), true, now).is_some(), "{user}");
            }
        }
        let mia = sessions.open("mia", MARK, now);
        assert_eq!(sessions.lock().len(), SESSIONS_MAX);
        assert!(sessions.find(&mia, true, now).is_some());
        assert!(sessions.find("7", true, now).is_none(), "nobody used it");
        assert!(sessions.find("8", true, now).is_some());
    }

    fn cookies(values: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(COOKIE, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn a_cookie_of_a_neighbour_does_not_count() {
        let plain = SessionCookie { is_tls: false };
        let tls = SessionCookie { is_tls: true };
        assert_eq!(plain.id(&cookies(&["a=b; spillway=one"])), Some("one"));
        assert_eq!(tls.id(&cookies(&["spillway=one"])), None);
        assert_eq!(tls.id(&cookies(&["spillway=one; __Host-spillway=two"])), Some("two"));
        assert_eq!(plain.id(&cookies(&["spillway=one; __Host-spillway=two"])), Some("two"));
        assert_eq!(plain.id(&cookies(&["spillway=one; spillway=two"])), None);
        assert_eq!(plain.id(&cookies(&["spillway=one", "spillway=two"])), None);
        assert_eq!(plain.id(&cookies(&["spillway=one; spillway=one"])), Some("one"));
        assert_eq!(plain.id(&cookies(&["xspillway=one", ""])), None);
    }

    #[test]
    fn no_script_and_no_other_site_gets_the_cookie() {
        let text = |value: HeaderValue| value.to_str().unwrap().to_owned();
        let none = HeaderMap::new();
        let by_proxy: HeaderMap =
            [(ORIGIN, "https://console.example.com".parse().unwrap())].into_iter().collect();
        let plain = SessionCookie { is_tls: false };
        assert_eq!(text(plain.set("x", &none)), "spillway=x; Path=/; HttpOnly; SameSite=Strict");
        let secure = "__Host-spillway=x; Path=/; HttpOnly; SameSite=Strict; Secure";
        assert_eq!(text(plain.set("x", &by_proxy)), secure);
        assert_eq!(text(SessionCookie { is_tls: true }.set("x", &none)), secure);
        assert!(text(plain.clear(&none)).ends_with("; Max-Age=0"));
    }
}
