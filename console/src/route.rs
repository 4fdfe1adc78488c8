//! The one table of routes. A route says what permission it needs and whether it changes anything;
//! from that, the guard, the API's document and the test of every role are made. No route exists
//! outside the table.

use axum::Router;
use axum::handler::Handler;
use axum::middleware::{from_fn_with_state, map_response};
use axum::routing::{MethodRouter, get, post};
use schemars::generate::SchemaGenerator;
use schemars::{JsonSchema, Schema};

use crate::access::{Permission, RouteEffect};
use crate::guard::{self, ConsoleGate, GuardedRoute};
use crate::headers;
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
            let guarded = handler.route_layer(from_fn_with_state(guarded, guard::admit));
            router = router.route(facts.path, guarded);
        }
        router
            .fallback(absent)
            .layer(from_fn_with_state(gate.hosts.clone(), guard::ensure_host))
            .layer(map_response(headers::secure))
    }
}

async fn absent() -> ProblemDetails {
    ProblemDetails::not_found("there is no such page")
}
