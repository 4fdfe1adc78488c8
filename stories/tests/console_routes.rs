//! Every route of the console: who may use it, requests of other sites, frames, and odd paths. The list of routes is written
//! and compared by a test of `spillway`, so a new route is tried here, or fails there.

use std::collections::BTreeSet;

use serde_json::json;
use stories::answer::Answer;
use stories::cell::Cell;
use stories::console::{ConsoleClient, percent};
use stories::console_cell::{ConsoleCell, PEOPLE};
use stories::report::say;
use stories::shop;

/// Method, path and needed permission of all routes.
const ROUTES: &str = include_str!("console/routes.txt");
/// Path of the API's document, which is not in the document.
const DOCUMENT: &str = "/api/v1/openapi.json";
/// Page that everybody may see and use.
const LOGIN: &str = "/login";
const FORM: &str = "application/x-www-form-urlencoded";
const JSON: &str = "application/json";
const ANYBODY: &str = "anybody";
const PERSONAL: &str = "the permission to see personal data";

/// A route, as it is tried.
pub(crate) struct TriedRoute {
    method: &'static str,
    pub(crate) path: &'static str,
    needs: &'static str,
}

/// All routes.
pub(crate) fn routes() -> Vec<TriedRoute> {
    let route = |line: &'static str| {
        let (route, needs) = line.split_once(": ")?;
        let (method, path) = route.split_once(' ')?;
        Some(TriedRoute { method, path, needs })
    };
    let all = ROUTES.lines().map(|line| route(line).expect("a route"));
    let all: Vec<_> = all.collect();
    assert!(all.len() > 40, "{} routes", all.len());
    all
}

impl TriedRoute {
    pub(crate) fn is_read(&self) -> bool {
        self.method == "GET"
    }

    pub(crate) fn is_api(&self) -> bool {
        self.path.starts_with("/api/")
    }

    /// True for an answer that does not end.
    pub(crate) fn is_stream(&self) -> bool {
        self.path.starts_with("/events/")
    }

    pub(crate) fn has_parameter(&self) -> bool {
        self.path.contains('{')
    }

    /// Path with the same text in place of each parameter.
    pub(crate) fn filled(&self, text: &str) -> String {
        let part = |part: &'static str| if part.starts_with('{') { text } else { part };
        self.path.split('/').map(part).collect::<Vec<_>>().join("/")
    }

    /// Path with parameters that fit.
    pub(crate) fn with(&self, id: &str, shop: &str) -> String {
        let fitting = [
            ("{consumer}", "http"),
            ("{id}", id),
            ("{shop}", shop),
            ("{hash}", "0000"),
            ("{name}", "console.js"),
        ];
        let path = fitting
            .into_iter()
            .fold(self.path.to_owned(), |path, (name, value)| path.replace(name, value));
        assert!(!path.contains('{'), "{path} has a parameter that is not known here");
        path
    }

    /// Path of something that is not there.
    fn absent(&self) -> String {
        let id = if self.path.contains("/jobs/") { "999999" } else { "no-such-webhook" };
        self.with(id, &shop::domain(9))
    }

    /// Media type of a body, and a body that changes nothing.
    fn body(&self) -> (&'static str, &'static str) {
        if self.is_api() { (JSON, "{}") } else { (FORM, "x=y") }
    }

    /// Tries the route, and returns the status.
    async fn status(&self, client: &ConsoleClient) -> u16 {
        let (media_type, body) = self.body();
        client.status(self.method, &self.absent(), media_type, body).await
    }

    fn admits(&self, role: &str, sees_personal_data: bool) -> bool {
        let roles = ["viewer", "support", "operator", "admin"];
        let rank = |role: &str| roles.iter().position(|other| *other == role);
        match self.needs.strip_prefix("the role ") {
            Some(least) => rank(role) >= Some(rank(least).expect("a role")),
            None => self.needs != PERSONAL || sees_personal_data,
        }
    }

    fn name(&self) -> String {
        format!("{} {} ({})", self.method, self.path, self.needs)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_document_has_every_route_of_the_api_with_what_it_needs() {
    let office = ConsoleCell::start(Cell::shared(), &[]).await;
    let document = office.program("vera").json(DOCUMENT).await;
    let mut described = BTreeSet::new();
    for (path, methods) in document["paths"].as_object().expect("paths") {
        for (method, operation) in methods.as_object().expect("methods") {
            let needs = operation["description"].as_str().unwrap_or_default();
            let needs = needs.strip_prefix("Needs ").and_then(|rest| rest.strip_suffix('.'));
            let needs = needs.unwrap_or_else(|| panic!("{method} {path}: {operation}"));
            described.insert(format!("{} {path} ({needs})", method.to_uppercase()));
        }
    }
    let tried = routes().into_iter().filter(|route| route.is_api() && route.path != DOCUMENT);
    assert_eq!(described, tried.map(|route| route.name()).collect());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_route_admits_those_who_may_and_nobody_else() {
    let office = ConsoleCell::start(Cell::shared(), &[]).await;
    let mut wrong = Vec::new();
    let routes = routes();
    for route in &routes {
        let name = route.name();
        let is_public = route.needs == ANYBODY;
        // As a page of the console would, without a login.
        let status = route.status(&office.console.browser()).await;
        if is_public == matches!(status, 303 | 401 | 403) || status >= 500 {
            wrong.push(format!("nobody: {name}: {status}"));
        }
        for (person, role, sees_personal_data) in PEOPLE {
            let program = office.program(person);
            // The login is for browsers.
            let origin = if is_public { "same-origin" } else { "" };
            let status = route.status(&program.header("Sec-Fetch-Site", origin)).await;
            let is_admitted = !matches!(status, 401 | 403);
            let may = route.admits(role, sees_personal_data);
            if may != is_admitted || (!may && status != 403) || status >= 500 {
                wrong.push(format!("{person} ({role}): {name}: {status}"));
            }
        }
        let status = route.status(&office.console.program("not-a-token")).await;
        if !is_public && !matches!(status, 303 | 401) {
            wrong.push(format!("a wrong token: {name}: {status}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let audit = office.program("sue").json("/api/v1/audit").await;
    assert_eq!(audit["records"], json!([]), "something was changed");
    say(&format!(
        "console: {} routes tried as nobody and as {} people",
        routes.len(),
        PEOPLE.len()
    ));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_change_is_taken_from_another_site_or_without_the_token_of_the_session() {
    let office = ConsoleCell::start(Cell::shared(), &[]).await;
    let (ada, sue) = (office.console.login("ada").await, office.console.login("sue").await);
    let (token, of_another) = (ada.csrf("/").await, sue.csrf("/").await);
    let (own, of_another) = (token.as_str(), of_another.as_str());
    let elsewhere = |name: &str, value: &str| ada.clone().header(name, value);
    let by_origin =
        |origin: &str| ada.clone().header("Sec-Fetch-Site", "").header("Origin", origin);
    let bad = [
        ("another site", elsewhere("Sec-Fetch-Site", "cross-site"), own),
        ("a site beside us", elsewhere("Sec-Fetch-Site", "same-site"), own),
        ("no origin", elsewhere("Sec-Fetch-Site", ""), own),
        ("another host", elsewhere("Host", "evil.example"), own),
        ("a form of a file", by_origin("null"), own),
        ("another origin", by_origin("https://evil.example"), own),
        ("no token", ada.clone(), ""),
        ("a made-up token", ada.clone(), "0000"),
        ("another's token", ada.clone(), of_another),
    ];
    let (mut wrong, mut good) = (Vec::new(), Vec::new());
    let routes = routes();
    let changes = routes.iter().filter(|route| !route.is_read() && route.path != LOGIN);
    for route in changes {
        let path = route.absent();
        let (media_type, body) = route.body();
        for (what, client, token) in &bad {
            let body =
                if route.is_api() { body.to_owned() } else { format!("{body}&csrf={token}") };
            let status = client.status("POST", &path, media_type, &body).await;
            if !matches!(status, 401 | 403) {
                wrong.push(format!("{what}: {}: {status}", route.name()));
            }
        }
        if route.is_api() {
            // The API takes tokens of programs. A cookie is sent by a page of anybody.
            let status = ada.status("POST", &path, media_type, body).await;
            if status != 403 {
                wrong.push(format!("a cookie: {}: {status}", route.name()));
            }
        } else {
            good.push((route, path));
        }
    }
    // A login that another site makes would put a browser into the account of an attacker.
    for (what, client, _) in &bad[..6] {
        let status = client.status("POST", LOGIN, FORM, "user=ada&password=x").await;
        if !matches!(status, 401 | 403) {
            wrong.push(format!("{what}: the login: {status}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(ada.get("/").await.status, 200, "a bad request ended the session");
    // The same with its own token is not refused for its origin. The logout comes last.
    good.sort_by_key(|(_, path)| path == "/logout");
    for (route, path) in good {
        let fields = [("x", "y"), ("csrf", own)];
        let status = ada.submit_bare(&path, &fields).await.status;
        assert!(!matches!(status, 401 | 403), "{}: {status}", route.name());
    }
    assert!(matches!(ada.get("/").await.status, 303 | 401), "it has logged out");
    assert_eq!(office.program("sue").json("/api/v1/audit").await["records"], json!([]));
}

/// Checks the headers that every answer has.
fn expect_secure(what: &str, answer: &Answer) {
    let policy = answer.headers.text("content-security-policy").unwrap_or_default();
    for part in ["default-src 'none'", "frame-ancestors 'none'", "form-action 'self'"] {
        assert!(policy.contains(part), "{what}: {part} is missing: {policy:?}");
    }
    assert!(!policy.contains("unsafe") && !policy.contains("://"), "{what}: {policy}");
    assert_eq!(answer.headers.text("x-frame-options"), Some("DENY"), "{what}");
    assert_eq!(answer.headers.text("x-content-type-options"), Some("nosniff"), "{what}");
    assert!(answer.headers.text("access-control-allow-origin").is_none(), "{what}");
    if !what.contains(" /assets/") {
        let cache = answer.headers.text("cache-control").unwrap_or_default();
        assert!(cache.contains("no-store") || cache.contains("no-cache"), "{what}: {cache}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_answer_forbids_frames_inline_scripts_and_other_hosts() {
    let office = ConsoleCell::start(Cell::shared(), &[]).await;
    office.bury(1, 1).await;
    let [ada, vera] = ["ada", "vera"].map(|name| office.program(name));
    let page = ada.page("/").await;
    let (_, style) = page.split_once("href=\"/assets/").expect("a style sheet");
    let (style, _) = style.split_once('"').expect("the end of its path");
    let others = [format!("/assets/{style}"), "/no/such/page".into(), "/api/v1/nothing".into()];
    let clients = [&ada, &vera, &office.console.nobody(), &office.console.browser()];
    for client in clients {
        for path in &others {
            expect_secure(&format!("GET {path}"), &client.get(path).await);
        }
        for route in routes().iter().filter(|route| !route.is_stream()) {
            let (path, (media_type, body)) = (route.absent(), route.body());
            let answer = client.send(route.method, &path, media_type, body.as_bytes()).await;
            expect_secure(&format!("{} {path}", route.method), &answer);
            // A method that it does not have, and one that nothing has.
            for method in ["PUT", "DELETE"] {
                let answer = client.send(method, &path, media_type, b"").await;
                assert!((400..500).contains(&answer.status), "{method} {path}: {}", answer.status);
                expect_secure(&format!("{method} {path}"), &answer);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn odd_paths_headers_and_hosts_are_refused_and_split_no_answer() {
    let office = ConsoleCell::start(Cell::shared(), &[]).await;
    let ada = office.program("ada");
    let pia = office.program("pia");
    let long = "9".repeat(2_000);
    let strange = [
        "..",
        "../../etc/passwd",
        "%2e%2e%2f%2e%2e%2fetc%2fpasswd",
        "a%00b",
        "a%0d%0aSet-Cookie:%20a=b",
        "%ff%fe",
        "%",
        "%zz",
        "%22spillway%22:in",
        "*",
        "a%22%22;--",
        long.as_str(),
        "18446744073709551616-0",
        "-1",
        "0-0",
    ];
    let queries = [
        "/dead?after=",
        "/webhooks?after=",
        "/lanes?after=",
        "/audit?after=",
        "/api/v1/audit?after=",
        "/gaps?after=",
        "/gaps.csv?since=",
        "/api/v1/dead?limit=",
        "/api/v1/lanes?consumer=",
        "/api/v1/webhooks?since=",
        "/login?next=",
    ];
    let routes = routes();
    let reads = routes.iter().filter(|route| route.is_read() && route.has_parameter());
    let reads: Vec<_> = reads.collect();
    for part in strange {
        let by_query = queries.iter().map(|base| format!("{base}{part}"));
        let by_path = reads.iter().map(|route| route.filled(part));
        for path in by_query.chain(by_path) {
            for client in [&ada, &pia] {
                // What a stream answers to something odd ends.
                let answer = client.get(&path).await;
                assert!(answer.status < 500, "{path}: {} {}", answer.status, answer.text());
                assert!(answer.headers.text("set-cookie").is_none(), "{path} set a cookie");
                assert!(!answer.text().contains("root:x:0:0"), "{path}");
            }
        }
    }
    for route in routes.iter().filter(|route| !route.is_read() && route.has_parameter()) {
        for part in strange {
            let (media_type, body) = route.body();
            let path = route.filled(part);
            let answer = ada.send("POST", &path, media_type, body.as_bytes()).await;
            assert!((400..500).contains(&answer.status), "{path}: {}", answer.text());
        }
    }
    for host in ["evil.example", "127.0.0.1", "127.0.0.1:1", "localhost.evil.example"] {
        // Probes may come by any name.
        for route in routes.iter().filter(|route| !["/livez", "/readyz"].contains(&route.path)) {
            let client = ada.clone().header("Host", host);
            let status = route.status(&client).await;
            assert!(matches!(status, 400 | 403 | 421), "{host}: {}: {status}", route.name());
        }
    }
    // The office is still open.
    assert_eq!(ada.get("/api/v1/status").await.status, 200);
    assert!(!office.console.output().contains("panicked"), "{}", office.console.output());
    let next = format!("/login?next={}", percent("/dead\r\nSet-Cookie: a=b"));
    assert!(office.console.nobody().get(&next).await.headers.text("set-cookie").is_none());
}
