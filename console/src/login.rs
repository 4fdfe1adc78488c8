//! Logins with a password, and the sessions that they open.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use zeroize::Zeroizing;

use crate::access::{Caller, Credential};
use crate::authenticate::{Authenticate, FoundCaller};
use crate::login_rate::LoginRate;
use crate::password::{LENGTH_MAX, PasswordHash};
use crate::proxy::{ProxyWarning, TrustedProxies};
use crate::sessions::{SessionCookie, Sessions};
use crate::users::Users;

/// Path of the login page.
pub const LOGIN: &str = "/login";
/// Memory of passwords that are checked at once, in MiB. One check takes 19 MiB, or what the file says, up to all of it.
const CHECKS_MIB: u16 = 64;
/// Least memory that a check counts as, so that two are made at once: each takes a core.
const CHECK_MIB_MIN: u16 = CHECKS_MIB / 2;
/// Logins that wait for that. More are refused at once.
const WAITING_MAX: usize = 30;
/// Longest path to go to after a login.
const NEXT_MAX: usize = 2_000;
/// Paths of streams of events, and of the metrics. A page that is merely open asks for them again and again.
const EVENTS: &str = "/events/";
const METRICS: &str = "/api/v1/metrics";

/// Opens and ends sessions.
pub struct LoginDesk {
    users: Arc<Users>,
    sessions: Sessions,
    cookie: SessionCookie,
    proxies: TrustedProxies,
    /// Time of the last warning of a proxy that is none of these.
    warning: ProxyWarning,
    rate: LoginRate,
    /// Permits to check a password: one for each MiB.
    checks: Arc<Semaphore>,
    /// Permits to wait for one of those.
    waiting: Semaphore,
    /// Hash that is checked in place of an unknown user's, so that both take as long.
    decoy: PasswordHash,
}

/// Reason why a login was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoginRefusal {
    /// The user is not known, or the password is wrong. It is not said which.
    Wrong,
    /// Too many attempts: the next one may come after this time.
    TooMany(Duration),
    /// Too many logins at once.
    Busy,
}

/// Knows a caller by the session of a login.
pub struct SessionAccess(pub Arc<LoginDesk>);

impl LoginDesk {
    /// A desk for these users.
    pub fn new(users: Arc<Users>, cookie: SessionCookie, proxies: TrustedProxies) -> Self {
        let decoy = PasswordHash::of(&rand::random::<[u8; 32]>());
        Self {
            users,
            sessions: Sessions::default(),
            cookie,
            proxies,
            warning: ProxyWarning::default(),
            rate: LoginRate::new(),
            checks: Arc::new(Semaphore::new(usize::from(CHECKS_MIB))),
            waiting: Semaphore::new(WAITING_MAX),
            decoy,
        }
    }

    /// Checks a password, and opens a session. Returns the header that gives it to the browser. A session that
    /// the browser had before ends.
    ///
    /// # Errors
    /// The reason, which does not say whether there is such a user.
    pub async fn log_in(
        &self,
        headers: &HeaderMap,
        peer: IpAddr,
        name: &str,
        password: Zeroizing<String>,
    ) -> Result<HeaderValue, LoginRefusal> {
        if self.proxies.miss(headers, peer) && self.warning.take_turn(Instant::now()) {
            tracing::warn!(
                %peer,
                "a login with X-Forwarded-For from an address that is not in TRUSTED_PROXIES: if it is a proxy, list \
                 it; otherwise one who guesses passwords locks out all who come by it"
            );
        }
        let client = self.proxies.client(headers, peer);
        self.rate.take(client, name, Instant::now()).map_err(LoginRefusal::TooMany)?;
        let user = self.users.find(name);
        let mark = user.as_ref().and_then(|user| user.password_mark());
        let known = user.and_then(|user| user.password);
        let is_right = self.check(known.as_ref().unwrap_or(&self.decoy), password).await?;
        let Some(mark) = mark.filter(|_| is_right) else {
            tracing::warn!(user = ?name.chars().take(64).collect::<String>(), %client, "a login to the console failed");
            return Err(LoginRefusal::Wrong);
        };
        let now = Instant::now();
        self.rate.on_login(client, name, now);
        self.end_session(headers);
        let id = self.sessions.open(name, mark, now);
        tracing::info!(user = name, %client, "logged in to the console");
        Ok(self.cookie.set(&id, headers))
    }

    /// Ends the session of a browser. Returns the header that takes it from the browser.
    pub fn log_out(&self, headers: &HeaderMap) -> HeaderValue {
        self.end_session(headers);
        self.cookie.clear(headers)
    }

    fn end_session(&self, headers: &HeaderMap) {
        if let Some(id) = self.cookie.id(headers) {
            self.sessions.close(id);
        }
    }

    async fn check(
        &self,
        hash: &PasswordHash,
        password: Zeroizing<String>,
    ) -> Result<bool, LoginRefusal> {
        let _waiting = self.waiting.try_acquire().map_err(|_| LoginRefusal::Busy)?;
        let memory = hash.memory_mib().clamp(CHECK_MIB_MIN.into(), CHECKS_MIB.into());
        let permit = self.checks.clone().acquire_many_owned(memory).await;
        let permit = permit.expect("BUG: the semaphore is never closed");
        let hash = hash.clone();
        // The permit goes along: a browser that leaves does not end the work.
        let checked = spawn_blocking(move || {
            let _permit = permit;
            password.len() <= LENGTH_MAX && hash.is_of(password.as_bytes())
        });
        checked.await.map_err(|_| LoginRefusal::Busy)
    }

    fn caller_of(&self, head: &Parts) -> Option<Caller> {
        let id = self.cookie.id(&head.headers)?;
        let session = self.sessions.find(id, is_use(head.uri.path()), Instant::now())?;
        let user = self.users.find(&session.user);
        // A user who is gone, or has another password by now, has no session either.
        let user = user.filter(|user| user.password_mark() == Some(session.password_mark));
        if user.is_none() {
            self.sessions.close(id);
        }
        user.map(|user| user.caller(Credential::Session, session.key))
    }
}

impl Authenticate for SessionAccess {
    fn caller<'a>(&'a self, head: &'a Parts) -> FoundCaller<'a> {
        Box::pin(std::future::ready(self.0.caller_of(head)))
    }

    fn has_login(&self) -> bool {
        true
    }
}

/// True for a request by which a user does something, and not a page that is merely open.
fn is_use(path: &str) -> bool {
    !path.starts_with(EVENTS) && path != METRICS
}

/// Path to go to after a login: `next`, if it is one of our pages, or else the overview. A browser reads `//`
/// and `/\` as the beginning of another host, and leaves out tabs and line ends.
pub fn path_after_login(next: &str) -> &str {
    let path = next.split(['?', '#']).next().unwrap_or_default();
    let is_ours = path.starts_with('/')
        && !path.contains("//")
        && next.len() <= NEXT_MAX
        && next.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\')
        && path != LOGIN;
    if is_ours { next } else { "/" }
}

#[cfg(test)]
mod tests {
    use axum::http::Request;
    use axum::http::header::COOKIE;

    use super::*;
    use crate::password::cheap;
    use crate::users::UserList;

    fn users(lines: &str) -> UserList {
        UserList::parse(lines).expect("good lines")
    }

    fn desk(lines: &str) -> LoginDesk {
        let users = Arc::new(Users::new(users(lines)));
        LoginDesk::new(users, SessionCookie { is_tls: false }, TrustedProxies::default())
    }

    fn peer() -> IpAddr {
        "192.0.2.1".parse().unwrap()
    }

    async fn log_in(desk: &LoginDesk, name: &str, password: &str) -> Result<String, LoginRefusal> {
        log_in_with(desk, &HeaderMap::new(), name, password).await
    }

    /// Returns the cookie.
    async fn log_in_with(
        desk: &LoginDesk,
        headers: &HeaderMap,
        name: &str,
        password: &str,
    ) -> Result<String, LoginRefusal> {
        let password = Zeroizing::new(password.to_owned());
        let set = desk.log_in(headers, peer(), name, password).await?;
        let set = set.to_str().expect("plain text");
        Ok(set.split(';').next().expect("a cookie").to_owned())
    }

    fn head(cookie: &str) -> Parts {
        Request::builder().header(COOKIE, cookie).body(()).unwrap().into_parts().0
    }

    #[tokio::test]
    async fn a_right_password_opens_a_session_and_a_wrong_one_does_not() {
        let desk = desk(&format!("mia:support+personal:{}\nleo:admin:*", cheap("right")));
        let cookie = log_in(&desk, "mia", "right").await.expect("it is right");
        let caller = desk.caller_of(&head(&cookie)).expect("she is known");
        assert_eq!((caller.name.as_str(), caller.sees_personal_data), ("mia", true));
        for (name, password) in
            [("mia", "wrong"), ("mia", ""), ("leo", ""), ("leo", "*"), ("eve", "right"), ("", "")]
        {
            assert_eq!(log_in(&desk, name, password).await, Err(LoginRefusal::Wrong), "{name}");
        }
        assert!(desk.caller_of(&head("spillway=")).is_none());
        let headers = head(&cookie).headers;
        desk.log_out(&headers);
        assert!(desk.caller_of(&head(&cookie)).is_none());
    }

    #[tokio::test]
    async fn a_login_ends_the_session_before_it_and_takes_no_id_from_the_browser() {
        let desk = desk(&format!("mia:viewer:{}", cheap("right")));
        let first = log_in(&desk, "mia", "right").await.unwrap();
        let prepared = head(&first).headers;
        let second = log_in_with(&desk, &prepared, "mia", "right").await.unwrap();
        assert_ne!(first, second);
        assert!(desk.caller_of(&head(&first)).is_none());
        assert!(desk.caller_of(&head(&second)).is_some());
    }

    #[tokio::test]
    async fn a_session_has_what_the_file_says_now() {
        let hash = cheap("right");
        let desk = desk(&format!("mia:admin:{hash}"));
        let cookie = log_in(&desk, "mia", "right").await.unwrap();
        let role = || desk.caller_of(&head(&cookie)).map(|caller| caller.role.name());
        let known = desk.caller_of(&head(&cookie)).map(|caller| caller.credential);
        assert_eq!(known, Some(Credential::Session), "a logout ends it");
        desk.users.replace(users(&format!("mia:viewer:{hash}")));
        assert_eq!(role(), Some("viewer"));
        desk.users.replace(users(&format!("mia:viewer:{}", cheap("another"))));
        assert_eq!(role(), None);
        desk.users.replace(users(&format!("mia:viewer:{hash}")));
        assert_eq!(role(), None, "it has ended for good");
    }

    #[test]
    fn a_page_that_is_merely_open_is_no_use_of_a_session() {
        let script = include_str!("../assets/console.js");
        let texts = script.split(['\'', '"', '`']);
        let mut asked: Vec<&str> = texts.filter(|text| text.starts_with("/api/")).collect();
        assert!(!asked.is_empty(), "the script asks for metrics");
        asked.extend([crate::pages::overview::EVENTS, "/events/jobs/7"]);
        for path in asked {
            assert!(!is_use(path), "{path}");
        }
        for path in ["/", "/lanes", "/api/v1/status", "/api/v1/metrics/", "/dead/replay"] {
            assert!(is_use(path), "{path}");
        }
    }

    #[tokio::test]
    async fn guesses_are_refused_before_they_cost_anything() {
        let desk = desk(&format!("mia:viewer:{}", cheap("right")));
        let mut wrong = 0;
        while log_in(&desk, "mia", "guess").await == Err(LoginRefusal::Wrong) {
            wrong += 1;
        }
        assert_eq!(wrong, 10);
        let told = log_in(&desk, "mia", "right").await;
        assert!(matches!(told, Err(LoginRefusal::TooMany(_))), "{told:?}");
    }

    #[tokio::test]
    async fn passwords_that_take_much_memory_are_checked_one_after_the_other() {
        let params =
            argon2::Params::new(u32::from(CHECKS_MIB) << 10, 1, 1, None).expect("good costs");
        let large = PasswordHash::with(params, b"right");
        let desk = desk(&format!("mia:viewer:{large}\ntom:viewer:{}", cheap("right")));
        let one_is_checked = desk.checks.clone().try_acquire_many_owned(CHECK_MIB_MIN.into());
        assert!(log_in(&desk, "tom", "right").await.is_ok(), "there is room for a usual one");
        let mut mia = Box::pin(log_in(&desk, "mia", "right"));
        tokio::select! {
            biased;
            _ = &mut mia => panic!("there is no room for a large one"),
            () = std::future::ready(()) => {}
        }
        drop(one_is_checked.expect("nobody else logs in"));
        assert!(mia.await.is_ok());
    }

    #[test]
    fn after_a_login_only_pages_of_ours_are_opened() {
        for good in ["/", "/lanes", "/webhooks?shop=a.myshopify.com&after=1-0", "/dead/1%2F2"] {
            assert_eq!(path_after_login(good), good);
        }
        let long = format!("/{}", "x".repeat(NEXT_MAX));
        for bad in [
            "",
            "lanes",
            "//evil.example",
            "/\\evil.example",
            "https://evil.example",
            "/\t/evil.example",
            "/\n/evil.example",
            "\\\\evil.example",
            "javascript:alert(1)",
            "/a//evil.example",
            " /lanes",
            "/x\r\nSet-Cookie: a=b",
            "/caf\u{e9}",
            "/login",
            "/login?next=/",
            &long,
        ] {
            assert_eq!(path_after_login(bad), "/", "{bad:?}");
        }
    }
}
