//! The guard before every handler: which host, who is it, may they, and does a change come from us.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::header::{ACCEPT, LOCATION};
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::time::timeout;

use crate::access::{Caller, Credential, Permission, RouteEffect};
use crate::authenticate::Authenticate;
use crate::csrf::ensure_token;
use crate::login::LOGIN;
use crate::origin::AllowedHosts;
use crate::pages::problem::PageProblem;
use crate::probes::is_probe;
use crate::problem::ProblemDetails;

/// Largest body of a change. A form has some hundred bytes.
const BODY_MAX: usize = 64 << 10;
/// Time for the body of a change.
const BODY_WITHIN: Duration = Duration::from_secs(10);
/// Header of a request by htmx, and the one by which it goes to another page.
const HX_REQUEST: &str = "hx-request";
const HX_REDIRECT: HeaderName = HeaderName::from_static("hx-redirect");

/// Checks that every route has in common.
#[derive(Clone)]
pub struct ConsoleGate {
    /// Finds the caller of a request.
    pub authenticator: Arc<dyn Authenticate>,
    /// Hosts under which the console is reached.
    pub hosts: Arc<AllowedHosts>,
}

/// A route with all that its guard has to know.
#[derive(Clone)]
pub(crate) struct GuardedRoute {
    /// Checks that every route has in common.
    pub gate: ConsoleGate,
    /// Effect of the route.
    pub effect: RouteEffect,
    /// Permission that a caller needs.
    pub permission: Permission,
    /// True if errors are problems as JSON, false if they are pages.
    pub is_api: bool,
}

/// Lets a request for one of our hosts through, and a probe for any.
pub(crate) async fn ensure_host(
    State(hosts): State<Arc<AllowedHosts>>,
    request: Request,
    next: Next,
) -> Response {
    if is_probe(request.uri().path()) {
        return next.run(request).await;
    }
    match hosts.ensure_host(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

/// Lets a request through that may use the route. Its handler finds the
/// [`Caller`](crate::access::Caller) among the extensions.
pub(crate) async fn admit(
    State(route): State<GuardedRoute>,
    request: Request,
    next: Next,
) -> Response {
    let (mut head, body) = request.into_parts();
    match route.check(&mut head, body).await {
        Ok(body) => next.run(Request::from_parts(head, body)).await,
        Err(problem) if route.is_api => problem.into_response(),
        Err(problem) if problem.status() == StatusCode::UNAUTHORIZED => {
            let has_login = route.gate.authenticator.has_login();
            let login = (has_login && route.effect == RouteEffect::Read).then(|| to_login(&head));
            login.flatten().unwrap_or_else(|| PageProblem(problem).into_response())
        }
        Err(problem) => PageProblem(problem).into_response(),
    }
}

impl GuardedRoute {
    /// Checks a request in the order of what a check costs. Nobody who is not known makes us read a body, except
    /// that of a login.
    async fn check(&self, head: &mut Parts, body: Body) -> Result<Body, ProblemDetails> {
        let caller = match self.permission {
            Permission::Public => None,
            _ => Some(self.known(head).await?),
        };
        let is_meant =
            caller.as_ref().is_some_and(|caller| caller.credential == Credential::Bearer);
        if self.effect == RouteEffect::Change && !is_meant {
            self.gate.hosts.ensure_same_origin(&head.headers)?;
        }
        if let Some(caller) = &caller
            && !caller.may(self.permission)
        {
            let needed = self.permission.description();
            let name = &caller.name;
            return Err(ProblemDetails::forbidden(format!("{name} needs {needed} for this")));
        }
        let body = match self.effect {
            RouteEffect::Read => body,
            RouteEffect::Change => {
                let body = read(body).await?;
                if let Some(caller) = &caller {
                    ensure_token(caller, &head.headers, &body)?;
                }
                Body::from(body)
            }
        };
        if let Some(caller) = caller {
            head.extensions.insert(caller);
        }
        Ok(body)
    }

    async fn known(&self, head: &Parts) -> Result<Caller, ProblemDetails> {
        let caller = self.gate.authenticator.caller(head).await;
        caller.ok_or_else(|| ProblemDetails::unauthorized("log in, or send an API token"))
    }
}

/// Reads the body of a change.
async fn read(body: Body) -> Result<Bytes, ProblemDetails> {
    let read = timeout(BODY_WITHIN, to_bytes(body, BODY_MAX)).await;
    let late = |_| {
        ProblemDetails::new(StatusCode::REQUEST_TIMEOUT, "timeout", "the body did not come in time")
    };
    read.map_err(late)?.map_err(|_| {
        let told = format!("the body has more than {BODY_MAX} bytes, or did not come whole");
        ProblemDetails::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", told)
    })
}

/// Sends a browser to the login, and from there back to the page. A stream of events is not sent: it would take the
/// login page for its events.
fn to_login(head: &Parts) -> Option<Response> {
    let accepted = head.headers.get(ACCEPT).map(HeaderValue::as_bytes).unwrap_or_default();
    if accepted.starts_with(b"text/event-stream") {
        return None;
    }
    if head.headers.contains_key(HX_REQUEST) {
        let to = [(HX_REDIRECT, HeaderValue::from_static(LOGIN))];
        return Some((StatusCode::UNAUTHORIZED, to).into_response());
    }
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    let path = utf8_percent_encode(path, NON_ALPHANUMERIC);
    let to = HeaderValue::from_str(&format!("{LOGIN}?next={path}")).ok()?;
    Some((StatusCode::SEE_OTHER, [(LOCATION, to)]).into_response())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use axum::Router;
    use hyper::body::Frame;
    use tower::ServiceExt as _;

    use super::*;
    use crate::access::{Role, SessionKey};
    use crate::authenticate::{AnonymousAccess, FoundCaller, NoAccess};
    use crate::route::{ConsoleRoute, RouteTable};

    const HOST: &str = "127.0.0.1:9820";

    /// Knows a bearer token for each role: its name.
    struct ByToken;

    impl Authenticate for ByToken {
        fn caller<'a>(&'a self, head: &'a Parts) -> FoundCaller<'a> {
            let text = head.headers.get("authorization").and_then(|value| value.to_str().ok());
            let role = text.and_then(|text| text.strip_prefix("Bearer ")?.parse().ok());
            let caller = role.map(|role: Role| Caller {
                name: role.to_string(),
                role,
                sees_personal_data: false,
                credential: Credential::Bearer,
                session: None,
            });
            Box::pin(std::future::ready(caller))
        }
    }

    fn table() -> RouteTable<()> {
        let done = || async { "done" };
        RouteTable::new([
            ConsoleRoute::read("/login", Permission::Public, done),
            ConsoleRoute::change("/login", Permission::Public, done),
            ConsoleRoute::read("/livez", Permission::Public, done),
            ConsoleRoute::read("/", Permission::Look, done),
            ConsoleRoute::read("/api/v1/body", Permission::Personal, done),
            ConsoleRoute::change("/api/v1/drop", Permission::Operate, done),
        ])
    }

    fn router(authenticator: Arc<dyn Authenticate>) -> Router {
        let hosts = Arc::new(AllowedHosts::new(HOST.parse().unwrap(), []));
        table().into_router(&ConsoleGate { authenticator, hosts })
    }

    async fn status(
        router: &Router,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
    ) -> StatusCode {
        let mut request = axum::http::Request::builder().method(method).uri(path);
        if !headers.iter().any(|(name, _)| *name == "host") {
            request = request.header("host", HOST);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::empty()).unwrap();
        router.clone().oneshot(request).await.unwrap().status()
    }

    #[tokio::test]
    async fn every_route_is_tried_as_each_role_and_as_nobody() {
        let router = router(Arc::new(ByToken));
        for facts in table().facts() {
            let method = facts.effect.method();
            for role in Role::ALL.map(Some).into_iter().chain([None]) {
                let bearer = role.map(|role| format!("Bearer {role}"));
                let mut headers = vec![("sec-fetch-site", "same-origin")];
                headers.extend(bearer.as_deref().map(|bearer| ("authorization", bearer)));
                let expected = match (facts.permission, role) {
                    (Permission::Public, _) => StatusCode::OK,
                    (_, None) => StatusCode::UNAUTHORIZED,
                    (permission, Some(role)) => match permission.least_role() {
                        Some(least) if role >= least => StatusCode::OK,
                        _ => StatusCode::FORBIDDEN,
                    },
                };
                let answer = status(&router, method.as_str(), facts.path, &headers).await;
                assert_eq!(answer, expected, "{method} {} as {role:?}", facts.path);
            }
        }
    }

    #[tokio::test]
    async fn a_probe_needs_neither_a_login_nor_our_host_and_all_else_does() {
        let router = router(Arc::new(NoAccess));
        let elsewhere = [("host", "10.1.2.3:9820")];
        assert_eq!(status(&router, "GET", "/livez", &elsewhere).await, StatusCode::OK);
        assert_eq!(status(&router, "GET", "/login", &elsewhere).await, StatusCode::FORBIDDEN);
        assert_eq!(status(&router, "GET", "/", &[]).await, StatusCode::UNAUTHORIZED);
    }

    /// Knows everybody as one user with a session.
    struct BySession(SessionKey);

    impl Authenticate for BySession {
        fn caller<'a>(&'a self, _: &'a Parts) -> FoundCaller<'a> {
            let caller = Caller {
                name: "mia".to_owned(),
                role: Role::Operator,
                sees_personal_data: false,
                credential: Credential::Ambient,
                session: Some(self.0.clone()),
            };
            Box::pin(std::future::ready(Some(caller)))
        }
    }

    /// A body of which nothing comes.
    struct NeverEnding;

    impl hyper::body::Body for NeverEnding {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Pending
        }
    }

    /// Knows nobody, but has a login.
    struct LoginOnly;

    impl Authenticate for LoginOnly {
        fn caller<'a>(&'a self, _: &'a Parts) -> FoundCaller<'a> {
            Box::pin(std::future::ready(None))
        }

        fn has_login(&self) -> bool {
            true
        }
    }

    #[tokio::test]
    async fn a_change_by_a_browser_comes_from_our_own_page() {
        let key = SessionKey::random();
        let token = key.token();
        let by_session = router(Arc::new(BySession(key)));
        for path in ["/api/v1/drop", "/login"] {
            let ours = [("sec-fetch-site", "same-origin"), ("x-csrf-token", &*token)];
            assert_eq!(status(&by_session, "POST", path, &ours).await, StatusCode::OK);
            for other in [&[("sec-fetch-site", "cross-site")][..], &[("origin", "null")], &[]] {
                let with_token = [other, &[("x-csrf-token", &*token)]].concat();
                let answer = status(&by_session, "POST", path, &with_token).await;
                assert_eq!(answer, StatusCode::FORBIDDEN, "{path} {other:?}");
            }
        }
        let bearer = [("authorization", "Bearer operator")];
        let by_token = router(Arc::new(ByToken));
        assert_eq!(status(&by_token, "POST", "/api/v1/drop", &bearer).await, StatusCode::OK);
    }

    #[tokio::test]
    async fn a_change_by_a_browser_holds_the_token_of_its_session() {
        let key = SessionKey::random();
        let token = key.token();
        let router = router(Arc::new(BySession(key)));
        let other = SessionKey::random().token();
        let send = async |body: String| {
            let request = axum::http::Request::post("/api/v1/drop")
                .header("host", HOST)
                .header("sec-fetch-site", "same-origin")
                .header("content-type", "application/x-www-form-urlencoded");
            let request = request.body(Body::from(body)).unwrap();
            router.clone().oneshot(request).await.unwrap().status()
        };
        assert_eq!(send(format!("a=b&csrf={token}")).await, StatusCode::OK);
        assert_eq!(send(format!("a=b&csrf={other}")).await, StatusCode::FORBIDDEN);
        assert_eq!(send("a=b".to_owned()).await, StatusCode::FORBIDDEN);
        let long = format!("csrf={token}&a={}", "x".repeat(BODY_MAX));
        assert_eq!(send(long).await, StatusCode::PAYLOAD_TOO_LARGE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_never_comes_is_given_up() {
        let read = read(Body::new(NeverEnding)).await;
        assert_eq!(read.map_err(|problem| problem.code), Err("timeout".to_owned()));
    }

    #[tokio::test]
    async fn a_browser_without_a_session_is_sent_to_the_login_and_back() {
        let router = router(Arc::new(LoginOnly));
        let send = async |method: &str, path: &str, header: (&str, &str)| {
            let request = axum::http::Request::builder().method(method).uri(path);
            let request = request.header("host", HOST).header("sec-fetch-site", "same-origin");
            let request = request.header(header.0, header.1).body(Body::empty()).unwrap();
            router.clone().oneshot(request).await.unwrap()
        };
        let any = ("accept", "text/html");
        let answer = send("GET", "/?a=b&c=%0d%0aX:y", any).await;
        assert_eq!(answer.status(), StatusCode::SEE_OTHER);
        let to = answer.headers()[LOCATION].to_str().unwrap();
        assert_eq!(to, "/login?next=%2F%3Fa%3Db%26c%3D%250d%250aX%3Ay");
        let unknown = StatusCode::UNAUTHORIZED;
        assert_eq!(send("GET", "/api/v1/body", any).await.status(), unknown);
        assert_eq!(send("POST", "/api/v1/drop", any).await.status(), unknown);
        assert_eq!(send("GET", "/", ("accept", "text/event-stream")).await.status(), unknown);
        let by_htmx = send("GET", "/", ("hx-request", "true")).await;
        assert_eq!(
            (by_htmx.status(), &by_htmx.headers()[HX_REDIRECT]),
            (unknown, &HeaderValue::from_static("/login"))
        );
    }

    #[tokio::test]
    async fn another_host_or_path_or_method_reaches_nothing() {
        let router = router(Arc::new(AnonymousAccess::new(Role::Admin)));
        let other = [("host", "evil.example")];
        assert_eq!(status(&router, "GET", "/", &other).await, StatusCode::FORBIDDEN);
        assert_eq!(status(&router, "GET", "/nowhere", &other).await, StatusCode::FORBIDDEN);
        assert_eq!(status(&router, "GET", "/nowhere", &[]).await, StatusCode::NOT_FOUND);
        assert_eq!(status(&router, "PUT", "/", &[]).await, StatusCode::METHOD_NOT_ALLOWED);
    }

    #[tokio::test]
    async fn without_an_authenticator_nobody_is_known() {
        let router = router(Arc::new(NoAccess));
        assert_eq!(status(&router, "GET", "/", &[]).await, StatusCode::UNAUTHORIZED);
        assert_eq!(status(&router, "GET", "/login", &[]).await, StatusCode::OK);
    }
}
