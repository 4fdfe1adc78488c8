//! The table of all routes of the console: each area adds its own.

use axum::http::header::CONTENT_TYPE;
use bytes::Bytes;
use spillway_console::openapi::document;
use spillway_console::{ConsoleRoute, Permission, RouteTable, assets};

use super::state::ConsoleState;
use super::{api, probes, views};

/// Path of the API's document.
const DOCUMENT: &str = "/api/v1/openapi.json";

/// All routes.
pub(super) fn table() -> RouteTable<ConsoleState> {
    let assets = ConsoleRoute::read(assets::PATH, Permission::Public, assets::asset);
    let areas = [vec![assets], probes::routes(), api::routes(), views::routes()];
    let mut table = RouteTable::new(areas.into_iter().flatten());
    let document = document(spillway_process::version(), table.facts());
    let document = Bytes::from(document.to_string());
    let answer = move || {
        let document = document.clone();
        async move { ([(CONTENT_TYPE, "application/json")], document) }
    };
    table.push(ConsoleRoute::read(DOCUMENT, Permission::Look, answer));
    table
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::fs;
    use std::path::Path;
    use std::sync::Arc;

    use axum::body::Body;
    use axum::http::request::Parts;
    use axum::http::{Request, StatusCode};
    use clap::Parser;
    use spillway_console::access::{Credential, RouteEffect};
    use spillway_console::authenticate::{AnonymousAccess, Authenticate, FoundCaller, NoAccess};
    use spillway_console::origin::AllowedHosts;
    use spillway_console::pages::frame::ConsoleView;
    use spillway_console::route::RouteFacts;
    use spillway_console::{Caller, ConsoleGate, Role};
    use tokio_util::sync::CancellationToken;
    use tower::ServiceExt as _;

    use super::super::history::HistoryArgs;
    use super::super::state::Console;
    use super::*;
    use crate::place::CellArgs;

    const HOST: &str = "127.0.0.1:9820";

    #[derive(Debug, Parser)]
    struct Flags {
        #[command(flatten)]
        history: HistoryArgs,
    }

    /// Knows everybody as a program with this role.
    struct ByRole(AnonymousAccess);

    impl Authenticate for ByRole {
        fn caller<'a>(&'a self, head: &'a Parts) -> FoundCaller<'a> {
            Box::pin(async move {
                let found = self.0.caller(head).await;
                found.map(|caller| Caller { credential: Credential::Bearer, ..caller })
            })
        }
    }

    /// Status of a route's answer. There is no Redis, so a handler can do nothing.
    async fn ask(
        console: &Arc<Console>,
        authenticator: Arc<dyn Authenticate>,
        facts: &RouteFacts,
    ) -> StatusCode {
        let listen = HOST.parse().expect("an address");
        let hosts = Arc::new(AllowedHosts::new(listen, std::iter::empty()));
        let gate = ConsoleGate { authenticator, hosts };
        let path = facts.path.replace(['{', '}'], "");
        let request = Request::builder().method(facts.effect.method()).uri(path);
        let request = request.header("host", HOST).header("sec-fetch-site", "same-origin");
        let request = request.body(Body::empty()).expect("a request");
        let router = table().into_router(&gate).with_state(console.clone());
        router.oneshot(request).await.expect("an answer").status()
    }

    #[test]
    fn every_route_is_there_once_and_every_operation_is_documented() {
        let mut seen = HashSet::new();
        for facts in table().facts() {
            assert!(seen.insert((facts.effect.method(), facts.path)), "{} twice", facts.path);
            if facts.path.starts_with("/api/") && facts.path != DOCUMENT {
                assert!(facts.operation.is_some(), "{} is not documented", facts.path);
            }
        }
    }

    /// The stories try each route of this list with every role, without a token, from other sites and with hostile
    /// strings.
    #[test]
    fn the_list_of_routes_that_the_stories_try_is_complete() {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../stories/tests/console/routes.txt");
        let table = table();
        let mut lines: Vec<String> = table
            .facts()
            .map(|facts| {
                let needs = facts.permission.description();
                format!("{} {}: {needs}\n", facts.effect.method(), facts.path)
            })
            .collect();
        lines.sort_unstable();
        let made = lines.concat();
        if std::env::var_os("UPDATE").is_some() {
            fs::write(&path, &made).expect("write the list");
        }
        let found = fs::read_to_string(&path).expect("the list");
        assert_eq!(
            found, made,
            "a route is new or has changed: write the list with UPDATE=1 cargo test -p spillway list_of_routes"
        );
    }

    #[test]
    fn only_the_login_probes_and_assets_are_public() {
        for facts in table().facts().filter(|facts| facts.permission == Permission::Public) {
            let is_expected = facts.path.starts_with("/assets/")
                || ["/login", "/livez", "/readyz"].contains(&facts.path);
            assert!(is_expected, "{} is public", facts.path);
        }
    }

    /// Permissions of docs/console.md, written a second time.
    #[test]
    fn the_audit_and_the_archive_need_what_the_documentation_says() {
        let table = table();
        for (effect, path, permission) in [
            (RouteEffect::Read, "/audit", Permission::Search),
            (RouteEffect::Read, "/api/v1/audit", Permission::Search),
            (RouteEffect::Read, "/archive", Permission::Operate),
            (RouteEffect::Change, "/archive/replay", Permission::Operate),
            (RouteEffect::Change, "/api/v1/consumers/{consumer}/replay", Permission::Operate),
            (RouteEffect::Change, "/dead/replay", Permission::Replay),
            (RouteEffect::Change, "/dead/drop", Permission::Operate),
        ] {
            let found = table.facts().find(|facts| facts.path == path && facts.effect == effect);
            assert_eq!(found.map(|facts| facts.permission), Some(permission), "{path}");
            assert_ne!(permission.least_role(), Some(Role::Viewer), "{path}");
        }
    }

    #[test]
    fn every_view_of_the_navigation_has_a_route_with_the_same_permission() {
        let table = table();
        for view in ConsoleView::ALL {
            let mut reads = table.facts().filter(|facts| facts.effect == RouteEffect::Read);
            let found = reads.find(|facts| facts.path == view.path());
            assert_eq!(found.map(|facts| facts.permission), Some(view.permission()), "{view:?}");
        }
    }

    #[tokio::test]
    async fn every_route_admits_exactly_the_roles_that_have_its_permission() {
        let place = CellArgs::new("unix:///nonexistent/redis.sock".to_owned(), "x:".to_owned());
        let history = Flags::parse_from(["x"]).history;
        let stop = CancellationToken::new();
        let console = Arc::new(Console::new(place, stop.clone(), history));
        let looking = console.clone();
        let looking = tokio::spawn(async move { looking.observe().await });
        let table = table();
        let guarded = table.facts().filter(|facts| facts.permission != Permission::Public);
        for facts in guarded {
            let nobody = ask(&console, Arc::new(NoAccess), facts).await;
            let is_sent_away = nobody == StatusCode::UNAUTHORIZED || nobody.is_redirection();
            assert!(is_sent_away, "nobody: {} {nobody}", facts.path);
            for role in Role::ALL {
                let access = AnonymousAccess::new(role);
                let known = role_of(&access).await;
                let status = ask(&console, Arc::new(ByRole(access)), facts).await;
                let is_refused = status == StatusCode::FORBIDDEN;
                assert_eq!(
                    is_refused,
                    !known.may(facts.permission),
                    "{role} {} {status}",
                    facts.path
                );
                assert_ne!(status, StatusCode::UNAUTHORIZED, "{role} {}", facts.path);
            }
        }
        stop.cancel();
        looking.await.expect("it ends");
    }

    async fn role_of(access: &AnonymousAccess) -> Caller {
        let (head, _) = Request::new(Body::empty()).into_parts();
        access.caller(&head).await.expect("everybody is known")
    }
}
