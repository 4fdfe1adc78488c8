//! The guard before every handler: which host, who is it, may they, and does a change come from us.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::access::{Credential, Permission, RouteEffect};
use crate::authenticate::Authenticate;
use crate::origin::AllowedHosts;
use crate::pages::problem::PageProblem;
use crate::problem::ProblemDetails;

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

/// Lets a request for one of our hosts through.
pub(crate) async fn ensure_host(
    State(hosts): State<Arc<AllowedHosts>>,
    request: Request,
    next: Next,
) -> Response {
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
    match route.check(request).await {
        Ok(request) => next.run(request).await,
        Err(problem) if route.is_api => problem.into_response(),
        Err(problem) => PageProblem(problem).into_response(),
    }
}

impl GuardedRoute {
    async fn check(&self, request: Request) -> Result<Request, ProblemDetails> {
        let (mut head, body) = request.into_parts();
        let caller =
            match self.permission {
                Permission::Public => None,
                _ => {
                    let caller = self.gate.authenticator.caller(&head).await;
                    Some(caller.ok_or_else(|| {
                        ProblemDetails::unauthorized("log in, or send an API token")
                    })?)
                }
            };
        let is_meant =
            caller.as_ref().is_some_and(|caller| caller.credential == Credential::Bearer);
        if self.effect == RouteEffect::Change && !is_meant {
            self.gate.hosts.ensure_same_origin(&head.headers)?;
        }
        if let Some(caller) = caller {
            if !caller.may(self.permission) {
                let needed = self.permission.description();
                let name = &caller.name;
                return Err(ProblemDetails::forbidden(format!("{name} needs {needed} for this")));
            }
            head.extensions.insert(caller);
        }
        Ok(Request::from_parts(head, body))
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::body::Body;
    use axum::http::StatusCode;
    use tower::ServiceExt as _;

    use super::*;
    use crate::access::{Caller, Role};
    use crate::authenticate::{AnonymousAccess, FoundCaller, NoAccess};
    use crate::route::{ConsoleRoute, RouteTable};

    const HOST: &str = "127.0.0.1:9820";

    /// Knows a bearer token for each role: its name.
    struct ByToken;

    impl Authenticate for ByToken {
        fn caller<'a>(&'a self, head: &'a axum::http::request::Parts) -> FoundCaller<'a> {
            let text = head.headers.get("authorization").and_then(|value| value.to_str().ok());
            let role = text.and_then(|text| text.strip_prefix("Bearer ")?.parse().ok());
            let caller = role.map(|role: Role| Caller {
                name: role.to_string(),
                role,
                sees_personal_data: false,
                credential: Credential::Bearer,
            });
            Box::pin(std::future::ready(caller))
        }
    }

    fn table() -> RouteTable<()> {
        let done = || async { "done" };
        RouteTable::new([
            ConsoleRoute::read("/login", Permission::Public, done),
            ConsoleRoute::change("/login", Permission::Public, done),
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
    async fn a_change_by_a_browser_comes_from_our_own_page() {
        let anonymous = router(Arc::new(AnonymousAccess::new(Role::Admin)));
        for path in ["/api/v1/drop", "/login"] {
            let ours = [("sec-fetch-site", "same-origin")];
            assert_eq!(status(&anonymous, "POST", path, &ours).await, StatusCode::OK);
            for other in [&[("sec-fetch-site", "cross-site")][..], &[("origin", "null")], &[]] {
                let answer = status(&anonymous, "POST", path, other).await;
                assert_eq!(answer, StatusCode::FORBIDDEN, "{path} {other:?}");
            }
        }
        let bearer = [("authorization", "Bearer operator")];
        let by_token = router(Arc::new(ByToken));
        assert_eq!(status(&by_token, "POST", "/api/v1/drop", &bearer).await, StatusCode::OK);
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
