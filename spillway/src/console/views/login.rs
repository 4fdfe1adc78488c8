//! Login and logout.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use axum::Extension;
use axum::extract::rejection::{FormRejection, QueryRejection};
use axum::extract::{Form, Query};
use axum::http::header::{LOCATION, RETRY_AFTER, SET_COOKIE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use spillway_console::login::{LOGIN, LoginDesk, LoginRefusal, path_after_login};
use spillway_console::pages::login::page;
use spillway_console::pages::problem::PageProblem;
use spillway_console::peer::PeerAddress;
use spillway_console::{ConsoleRoute, Permission, ProblemDetails};
use zeroize::Zeroizing;

use crate::console::state::ConsoleState;

/// The desk, if users log in here.
type MaybeDesk = Option<Extension<Arc<LoginDesk>>>;

/// Query of the login page.
#[derive(Debug, Default, Deserialize)]
struct LoginQuery {
    #[serde(default)]
    next: String,
}

/// Form of the login page.
#[derive(Deserialize)]
struct LoginForm {
    user: String,
    password: Zeroizing<String>,
    #[serde(default)]
    next: String,
}

/// Routes of this area.
pub(in crate::console) fn routes() -> Vec<ConsoleRoute<ConsoleState>> {
    vec![
        ConsoleRoute::read(LOGIN, Permission::Public, login),
        ConsoleRoute::change(LOGIN, Permission::Public, log_in),
        ConsoleRoute::change("/logout", Permission::Look, log_out),
    ]
}

async fn login(
    desk: MaybeDesk,
    query: Result<Query<LoginQuery>, QueryRejection>,
) -> Result<Response, PageProblem> {
    present(desk)?;
    let query = query.map(|Query(query)| query).unwrap_or_default();
    Ok(page(path_after_login(&query.next), None).into_response())
}

async fn log_in(
    desk: MaybeDesk,
    peer: Option<Extension<PeerAddress>>,
    headers: HeaderMap,
    form: Result<Form<LoginForm>, FormRejection>,
) -> Result<Response, PageProblem> {
    let desk = present(desk)?;
    let form = form.map_err(|_| ProblemDetails::bad_request("this is not the form of the login"));
    let Form(LoginForm { user, password, next }) = form?;
    let next = path_after_login(&next);
    let unknown = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let peer = peer.map_or(unknown, |Extension(PeerAddress(peer))| peer.ip());
    match desk.log_in(&headers, peer, &user, password).await {
        Ok(cookie) => Ok(to(next, cookie)),
        Err(refusal) => Ok(refused(refusal, next)),
    }
}

async fn log_out(desk: MaybeDesk, headers: HeaderMap) -> Result<Response, PageProblem> {
    let desk = present(desk)?;
    Ok(to(LOGIN, desk.log_out(&headers)))
}

fn present(desk: MaybeDesk) -> Result<Arc<LoginDesk>, PageProblem> {
    let absent = || ProblemDetails::not_found("there is no login: CONSOLE_USERS_FILE is not set");
    let Extension(desk) = desk.ok_or_else(absent)?;
    Ok(desk)
}

fn to(path: &str, cookie: HeaderValue) -> Response {
    let path = HeaderValue::from_str(path).unwrap_or(HeaderValue::from_static("/"));
    (StatusCode::SEE_OTHER, [(LOCATION, path), (SET_COOKIE, cookie)]).into_response()
}

fn refused(refusal: LoginRefusal, next: &str) -> Response {
    match refusal {
        LoginRefusal::Wrong => {
            let told = "the user or the password is wrong";
            (StatusCode::UNAUTHORIZED, page(next, Some(told))).into_response()
        }
        LoginRefusal::TooMany(wait) => {
            let seconds = wait.as_secs() + 1;
            let told = format!("too many attempts: try again in {seconds} s");
            let answer = page(next, Some(&told));
            let after = HeaderValue::from(seconds);
            (StatusCode::TOO_MANY_REQUESTS, [(RETRY_AFTER, after)], answer).into_response()
        }
        LoginRefusal::Busy => {
            let told = "too many people log in just now: try again";
            (StatusCode::SERVICE_UNAVAILABLE, page(next, Some(told))).into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::http::header::COOKIE;
    use axum::http::request::Parts;
    use spillway_console::authenticate::Authenticate as _;
    use spillway_console::login::SessionAccess;
    use spillway_console::password::PasswordHash;
    use spillway_console::proxy::TrustedProxies;
    use spillway_console::sessions::SessionCookie;
    use spillway_console::users::{UserList, Users};

    use super::*;

    fn desk() -> Arc<LoginDesk> {
        let line = format!("mia:viewer:{}", PasswordHash::of(b"correct horse"));
        let users = UserList::parse(&line).expect("a good line");
        let users = Arc::new(Users::new(users));
        let cookie = SessionCookie { is_tls: false };
        Arc::new(LoginDesk::new(users, cookie, TrustedProxies::default()))
    }

    async fn answer(desk: &Arc<LoginDesk>, password: &str, next: &str) -> Response {
        let form = LoginForm {
            user: "mia".to_owned(),
            password: Zeroizing::new(password.to_owned()),
            next: next.to_owned(),
        };
        let peer = PeerAddress(([192, 0, 2, 1], 4242).into());
        let desk = Some(Extension(desk.clone()));
        let answer = log_in(desk, Some(Extension(peer)), HeaderMap::new(), Ok(Form(form))).await;
        answer.expect("there is a login")
    }

    fn head(cookie: &str) -> Parts {
        let request = axum::http::Request::builder().header(COOKIE, cookie).body(());
        request.expect("a request").into_parts().0
    }

    #[tokio::test]
    async fn a_login_leads_back_to_the_page_and_nowhere_else() {
        let desk = desk();
        let to = |answer: &Response| answer.headers()[LOCATION].to_str().map(str::to_owned);
        let there = answer(&desk, "correct horse", "/lanes?shop=a").await;
        assert_eq!(there.status(), StatusCode::SEE_OTHER);
        assert_eq!(to(&there).expect("text"), "/lanes?shop=a");
        let elsewhere = answer(&desk, "correct horse", "//evil.example").await;
        assert_eq!(to(&elsewhere).expect("text"), "/");
    }

    #[tokio::test]
    async fn the_cookie_is_a_session_until_the_logout() {
        let desk = desk();
        let wrong = answer(&desk, "wrong horse", "/").await;
        assert_eq!(wrong.status(), StatusCode::UNAUTHORIZED);
        assert!(!wrong.headers().contains_key(SET_COOKIE));
        let right = answer(&desk, "correct horse", "/").await;
        let cookie = right.headers()[SET_COOKIE].to_str().expect("text");
        assert!(cookie.contains("; HttpOnly; SameSite=Strict"), "{cookie}");
        let head = head(cookie.split(';').next().expect("a cookie"));
        let access = SessionAccess(desk.clone());
        assert!(access.caller(&head).await.is_some_and(|caller| caller.name == "mia"));
        let out = log_out(Some(Extension(desk)), head.headers.clone()).await;
        let out = out.expect("there is a login");
        assert_eq!(out.headers()[LOCATION], "/login");
        assert!(access.caller(&head).await.is_none());
    }

    #[tokio::test]
    async fn too_many_guesses_are_told_when_to_come_back() {
        let desk = desk();
        let mut last = answer(&desk, "guess", "/").await;
        for _ in 0..10 {
            last = answer(&desk, "guess", "/").await;
        }
        assert_eq!(last.status(), StatusCode::TOO_MANY_REQUESTS);
        assert!(last.headers().contains_key(RETRY_AFTER));
    }

    #[tokio::test]
    async fn without_users_there_is_no_login() {
        let absent = login(None, Ok(Query(LoginQuery::default()))).await;
        let problem = absent.expect_err("there is none").0;
        assert_eq!(problem.status(), StatusCode::NOT_FOUND);
    }
}
