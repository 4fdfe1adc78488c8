//! The table of all routes of the console: each area adds its own.

use axum::http::header::CONTENT_TYPE;
use bytes::Bytes;
use spillway_console::openapi::document;
use spillway_console::{ConsoleRoute, Permission, RouteTable, assets};

use super::state::ConsoleState;
use super::{api, views};

/// Path of the API's document.
const DOCUMENT: &str = "/api/v1/openapi.json";

/// All routes.
pub(super) fn table() -> RouteTable<ConsoleState> {
    let assets = ConsoleRoute::read(assets::PATH, Permission::Public, assets::asset);
    let areas = [vec![assets], api::routes(), views::routes()];
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

    use spillway_console::access::RouteEffect;
    use spillway_console::pages::frame::ConsoleView;

    use super::*;

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

    #[test]
    fn only_the_login_and_assets_are_public() {
        for facts in table().facts().filter(|facts| facts.permission == Permission::Public) {
            let is_expected = facts.path.starts_with("/assets/") || facts.path == "/login";
            assert!(is_expected, "{} is public", facts.path);
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
}
