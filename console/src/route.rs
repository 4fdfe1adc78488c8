//! The one table of routes. A route says what permission it needs and whether it changes anything;
//! from that, the guard, the API's document and the test of every role are made. No route exists
//! outside the table.

use axum::Router;
use axum::handler::Handler;
use axum::http::{StatusCode, Uri};
use axum::middleware::{from_fn, from_fn_with_state, map_response};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use schemars::generate::SchemaGenerator;
use schemars::{JsonSchema, Schema};

use crate::access::{Permission, RouteEffect};
use crate::etag;
use crate::guard::{self, ConsoleGate, GuardedRoute};
use crate::headers;
use crate::pages::problem::PageProblem;
use crate::problem::ProblemDetails;

/// Path below which answers are JSON and errors are problems. Everything else is a page.
pub(crate) const API: &str = "/api/";

/// A route: facts about it, and its handler.
pub struct ConsoleRoute<S> {
    facts: RouteFacts,
    handler: MethodRouter<S>,
}

/// Facts about a route.
#[derive(Clone)]
pub struct RouteFacts {
    /// Path, with its parameters in braces.
    pub path: &'static str,
    /// Effect of the route, which is also its method.
    pub effect: RouteEffect,
    /// Permission that a caller needs.
    pub permission: Permission,
    /// Documentation of a route of the API.
    pub operation: Option<Operation>,
}

/// Documentation of one operation of the API.
#[derive(Clone)]
pub struct Operation {
    /// One line about it.
    pub summary: &'static str,
    /// Schema of the answer.
    pub answer: SchemaOf,
    /// Schema of an object whose members are the parameters of the query.
    pub query: Option<SchemaOf>,
    /// Schema of the request's body.
    pub body: Option<SchemaOf>,
}

/// Function that makes the schema of a type.
pub type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// All routes of a console.
pub struct RouteTable<S>(Vec<ConsoleRoute<S>>);

impl<S: Clone + Send + Sync + 'static> ConsoleRoute<S> {
    /// A route that changes nothing: GET.
    pub fn read<H: Handler<T, S>, T: 'static>(
        path: &'static str,
        permission: Permission,
        handler: H,
    ) -> Self {
        Self::new(path, RouteEffect::Read, permission, get(handler))
    }

    /// A route that changes something: POST.
    pub fn change<H: Handler<T, S>, T: 'static>(
        path: &'static str,
        permission: Permission,
        handler: H,
    ) -> Self {
        Self::new(path, RouteEffect::Change, permission, post(handler))
    }

    fn new(
        path: &'static str,
        effect: RouteEffect,
        permission: Permission,
        handler: MethodRouter<S>,
    ) -> Self {
        let facts = RouteFacts { path, effect, permission, operation: None };
        Self { facts, handler }
    }

    /// Documents an operation of the API that answers with an `A`.
    #[must_use]
    pub fn answers<A: JsonSchema>(mut self, summary: &'static str) -> Self {
        assert!(self.facts.path.starts_with(API), "BUG: {} is a page", self.facts.path);
        let answer: SchemaOf = SchemaGenerator::subschema_for::<A>;
        self.facts.operation = Some(Operation { summary, answer, query: None, body: None });
        self
    }

    /// Documents the parameters of the query: the members of `Q`.
    #[must_use]
    pub fn with_query<Q: JsonSchema>(mut self) -> Self {
        self.operation().query = Some(Q::json_schema);
        self
    }

    /// Documents the body of the request.
    #[must_use]
    pub fn with_body<B: JsonSchema>(mut self) -> Self {
        self.operation().body = Some(SchemaGenerator::subschema_for::<B>);
        self
    }

    fn operation(&mut self) -> &mut Operation {
        self.facts.operation.as_mut().expect("BUG: `answers` comes first")
    }
}

impl<S: Clone + Send + Sync + 'static> RouteTable<S> {
    /// A table of these routes.
    pub fn new(routes: impl IntoIterator<Item = ConsoleRoute<S>>) -> Self {
        Self(routes.into_iter().collect())
    }

    /// Adds a route.
    pub fn push(&mut self, route: ConsoleRoute<S>) {
        self.0.push(route);
    }

    /// Facts about all routes.
    pub fn facts(&self) -> impl Iterator<Item = &RouteFacts> {
        self.0.iter().map(|route| &route.facts)
    }

    /// Puts every route behind its guard.
    pub fn into_router(self, gate: &ConsoleGate) -> Router<S> {
        let mut router = Router::new();
        for ConsoleRoute { facts, handler } in self.0 {
            let guarded = GuardedRoute {
                gate: gate.clone(),
                effect: facts.effect,
                permission: facts.permission,
                is_api: facts.path.starts_with(API),
            };
            let is_tagged = guarded.is_api && facts.effect == RouteEffect::Read;
            let handler = if is_tagged { handler.route_layer(from_fn(etag::tag)) } else { handler };
            let guarded = handler.route_layer(from_fn_with_state(guarded, guard::admit));
            router = router.route(facts.path, guarded);
        }
        router
            .method_not_allowed_fallback(wrong_method)
            .fallback(absent)
            .layer(from_fn_with_state(gate.hosts.clone(), guard::ensure_host))
            .layer(map_response(headers::secure))
    }
}

async fn absent(uri: Uri) -> Response {
    answer(&uri, ProblemDetails::not_found("there is no such page"))
}

async fn wrong_method(uri: Uri) -> Response {
    let told = "this path does not take that method: GET reads, POST changes";
    answer(&uri, ProblemDetails::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", told))
}

/// A problem in the form of the path: JSON, or a page.
pub(crate) fn answer(uri: &Uri, problem: ProblemDetails) -> Response {
    match uri.path().starts_with(API) {
        true => problem.into_response(),
        false => PageProblem(problem).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::body::Body;
    use axum::http::Request;
    use axum::http::header::CONTENT_TYPE;
    use tower::ServiceExt as _;

    use super::*;
    use crate::access::Role;
    use crate::authenticate::AnonymousAccess;
    use crate::origin::AllowedHosts;
    use crate::problem::MEDIA_TYPE;

    const HOST: &str = "127.0.0.1:9820";

    async fn ask(method: &str, path: &str) -> Response {
        let listen = HOST.parse().expect("an address");
        let gate = ConsoleGate {
            authenticator: Arc::new(AnonymousAccess::new(Role::Viewer)),
            hosts: Arc::new(AllowedHosts::new(listen, std::iter::empty())),
        };
        let known =
            ConsoleRoute::<()>::read("/api/v1/known", Permission::Look, || async { "known" });
        let request = Request::builder().method(method).uri(path).header("host", HOST);
        let request = request.body(Body::empty()).expect("a request");
        let router = RouteTable::new([known]).into_router(&gate).with_state(());
        router.oneshot(request).await.expect("an answer")
    }

    #[tokio::test]
    async fn an_unknown_path_or_method_is_a_problem_in_its_form() {
        let known = ask("GET", "/api/v1/known").await;
        assert!(known.status() == StatusCode::OK && known.headers().contains_key("etag"));
        for (method, path, status, media_type) in [
            ("GET", "/api/v1/other", StatusCode::NOT_FOUND, MEDIA_TYPE),
            ("POST", "/api/v1/known", StatusCode::METHOD_NOT_ALLOWED, MEDIA_TYPE),
            ("GET", "/other", StatusCode::NOT_FOUND, "text/html; charset=utf-8"),
        ] {
            let answer = ask(method, path).await;
            assert_eq!(answer.status(), status, "{method} {path}");
            assert_eq!(answer.headers()[CONTENT_TYPE], media_type, "{method} {path}");
        }
    }
}
