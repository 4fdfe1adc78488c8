//! Strings of strangers: shops, topics, ids, headers and bodies that try to become part of a page.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use serde_json::{Value, json};
use stories::behaviour::Behaviour;
use stories::cell::Cell;
use stories::client::post;
use stories::console::{ConsoleClient, percent};
use stories::console_cell::ConsoleCell;
use stories::report::say;
use stories::size::size;
use stories::until::{until, until_some};
use stories::webhook::Webhook;
use time::OffsetDateTime;

use crate::console_routes::{TriedRoute, routes};

const SOON: Duration = Duration::from_secs(60);
/// One string in each line.
const CORPUS: &str = include_str!("console/hostile.txt");
/// Views that show strings of strangers.
const SHOWING: [&str; 12] = [
    "/audit",
    "/dead",
    "/dead/{id}",
    "/gaps",
    "/jobs",
    "/jobs/{id}",
    "/lanes",
    "/shops",
    "/shops/{shop}",
    "/webhooks",
    "/webhooks/{id}",
    "/webhooks/{id}/content",
];
/// Views that show none, or only by chance.
const PLAIN: [&str; 9] =
    ["/", "/archive", "/audit.csv", "/demo", "/doctor", "/gaps.csv", "/livez", "/login", "/readyz"];
/// Elements that pages are made of. None of the corpus is among them, except `<div>`, `<a>` and
/// `<form>`, whose attributes are looked at.
const ELEMENTS: &str = "a abbr article aside body br button caption code dd details div dl dt em fieldset figcaption figure \
                        footer form h1 h2 h3 h4 head header hr html input label legend li link main meta nav \
                        noscript ol option output p pre progress script section select small span strong \
                        summary table tbody td textarea tfoot th thead time title tr ul";
/// Attributes whose value is a place.
const PLACES: [&str; 7] = ["href", "src", "action", "formaction", "hx-get", "hx-post", "data-live"];

/// Tags of a page, from `<` to `>`, as a browser sees them: `>` in quotes is a letter.
fn tags(page: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = page;
    while let Some(begin) = rest.find('<') {
        rest = &rest[begin..];
        let mut quote = None;
        let end = rest.char_indices().find(|(_, letter)| match (quote, *letter) {
            (None, '"' | '\'') => {
                quote = Some(*letter);
                false
            }
            (Some(open), letter) if open == letter => {
                quote = None;
                false
            }
            (None, '>') => true,
            _ => false,
        });
        let Some((end, _)) = end else {
            found.push(rest);
            return found;
        };
        found.push(&rest[..=end]);
        rest = &rest[end + 1..];
    }
    found
}

/// Attributes of a tag with their values.
fn attributes(tag: &str) -> Vec<(String, String)> {
    let inside = tag.trim_start_matches(['<', '/']).trim_end_matches(['>', '/']);
    let mut rest = inside.trim_start_matches(|letter: char| !letter.is_whitespace()).trim_start();
    let mut found = Vec::new();
    while !rest.is_empty() {
        let end = rest.find(['=', ' ', '\n']).unwrap_or(rest.len());
        let name = rest[..end].to_owned();
        rest = &rest[end..];
        let mut value = "";
        if let Some(after) = rest.strip_prefix("=\"") {
            (value, rest) = after.split_once('"').unwrap_or((after, ""));
        } else if let Some(after) = rest.strip_prefix('=') {
            (value, rest) = after.split_once(' ').unwrap_or((after, ""));
        }
        found.push((name, value.to_owned()));
        rest = rest.trim_start();
    }
    found
}

/// Parts of a page that a string of the corpus could have made.
fn foreign(page: &str) -> Vec<String> {
    let allowed: BTreeSet<&str> = ELEMENTS.split_whitespace().collect();
    let mut found = Vec::new();
    for tag in tags(page).into_iter().filter(|tag| !tag.eq_ignore_ascii_case("<!doctype html>")) {
        let name = tag.trim_start_matches(['<', '/']);
        let name = name.split(|letter: char| !letter.is_ascii_alphanumeric()).next();
        let attributes = attributes(tag);
        let is_place = |value: &str| {
            let is_path = value.starts_with('/') && !value.starts_with("//");
            is_path && !value.starts_with("/\\") || value.starts_with(['#', '?'])
        };
        let is_bad = |(name, value): &(String, String)| {
            let is_plain = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-');
            !is_plain
                || name.starts_with("on")
                || name.starts_with("hx-on")
                || ["style", "srcdoc"].contains(&name.as_str())
                || (name == "content" && value.contains("//"))
                || (PLACES.contains(&name.as_str()) && !is_place(value))
        };
        let is_inline = tag.starts_with("<script") && !tag.contains(" src=\"/assets/");
        let is_known = name.is_some_and(|name| allowed.contains(name));
        if !is_known || is_inline || attributes.iter().any(is_bad) {
            found.push(tag.to_owned());
        }
    }
    found
}

/// The same text as it stands in HTML.
fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', "&quot;")
}

/// The text of an attribute as a browser reads it.
fn unescaped(text: &str) -> String {
    let text = text.replace("&quot;", "\"").replace("&lt;", "<").replace("&gt;", ">");
    text.replace("&#39;", "'").replace("&amp;", "&")
}

/// Pages of each view that were seen, and lines of the corpus on them.
#[derive(Default)]
struct Seen(BTreeMap<&'static str, (usize, BTreeSet<usize>)>);

impl Seen {
    fn add(&mut self, view: &'static str, page: &str) {
        let (pages, lines) = self.0.entry(view).or_default();
        *pages += 1;
        let shown = CORPUS.lines().enumerate().filter(|(_, line)| page.contains(&escaped(line)));
        lines.extend(shown.map(|(place, _)| place));
    }

    /// All lines that were on a page of any view.
    fn lines(&self) -> BTreeSet<usize> {
        self.0.values().flat_map(|(_, lines)| lines.iter().copied()).collect()
    }
}

/// View to which a path leads: the route without parameters, or else one with.
fn view_of(path: &str, views: &[TriedRoute]) -> Option<&'static str> {
    let path = path.split(['?', '#']).next().unwrap_or_default();
    let is_same = |route: &str| {
        let mut parts = route.split('/').zip(path.split('/'));
        route.split('/').count() == path.split('/').count()
            && parts.all(|(own, other)| own.starts_with('{') || own == other)
    };
    let exact = views.iter().find(|view| view.path == path);
    exact.or_else(|| views.iter().find(|view| is_same(view.path))).map(|view| view.path)
}

/// Looks at these pages, and at some of each view to which links lead from them.
async fn crawl(client: &ConsoleClient, from: &[String], seen: &mut Seen) {
    let views: Vec<_> = routes().into_iter().filter(is_view).collect();
    // Pages of one view to which links are followed.
    let most = size(12, 60);
    let mut to_do: VecDeque<String> = from.iter().cloned().collect();
    let mut known: BTreeSet<String> = from.iter().cloned().collect();
    let mut followed: BTreeMap<Option<&str>, usize> = BTreeMap::new();
    while let Some(path) = to_do.pop_front() {
        let answer = client.get(&path).await;
        assert!(answer.status < 500, "{path}: {} {}", answer.status, answer.text());
        let media_type = answer.headers.text("content-type").unwrap_or_default();
        if !media_type.starts_with("text/html") {
            continue;
        }
        let page = answer.text();
        let found = foreign(&page);
        assert!(found.is_empty(), "{path} ({}): {found:#?}", answer.status);
        if let Some(view) = view_of(&path, &views).filter(|_| answer.status == 200) {
            seen.add(view, &page);
        }
        for tag in tags(&page).into_iter().filter(|tag| tag.starts_with("<a ")) {
            let links = attributes(tag).into_iter().filter(|(name, _)| name == "href");
            for (_, link) in links {
                let link = unescaped(&link);
                let is_page = link.starts_with('/') && !link.starts_with("/assets/");
                if !is_page || link.contains('#') || known.contains(&link) {
                    continue;
                }
                let pages = followed.entry(view_of(&link, &views)).or_default();
                if *pages < most {
                    *pages += 1;
                    known.insert(link.clone());
                    to_do.push_back(link);
                }
            }
        }
    }
}

/// True for a page that is read.
fn is_view(route: &TriedRoute) -> bool {
    let is_other = route.is_api() || route.is_stream() || route.path.starts_with("/assets/");
    route.is_read() && !is_other
}

/// Stores webhooks with a string of the corpus in every place. Returns how many were taken.
async fn send(office: &ConsoleCell) -> usize {
    let mut taken = 0;
    for (number, line) in (1_000..).zip(CORPUS.lines()) {
        let id = format!("hostile-{number}");
        let plain = || Webhook::product(number, &id, format!("{{\"id\":{number}}}").into_bytes());
        let shop = format!("{line}.myshopify.com");
        for webhook in [
            plain().with("X-Shopify-Shop-Domain", line).topic(line),
            plain().with("X-Shopify-Shop-Domain", &shop).with("X-Shopify-Webhook-Id", line),
            plain().with("X-Shopify-Product-Id", line).header("X-Anything", line),
            plain().body(line.as_bytes()).with("Content-Type", "text/html"),
            plain().body(json!({ "id": number, "title": line }).to_string()).topic("orders/create"),
        ] {
            let answer = post(office.receiver.address(), &webhook).await;
            assert!(answer.status < 500, "{line:?}: {}", answer.text());
            taken += usize::from(answer.status == 200);
        }
    }
    taken
}

/// Notes gaps of shops and topics that are strings of the corpus.
async fn note_gaps(office: &ConsoleCell) {
    let now = OffsetDateTime::now_utc().unix_timestamp() * 1_000;
    for (line, place) in CORPUS.lines().zip(1..) {
        let from = now - place * 600_000;
        let note = json!({
            "reason": "lost", "shop": line, "topic": line, "from_ms": from, "to_ms": from + 1_000, "count": 0,
        });
        let note = note.to_string();
        let add = ["XADD", "{spillway}:gaps", "*", "g", note.as_str()];
        office.redis.command::<String>(&add).await;
    }
}

/// Orders pauses, drops and dry runs with strings of the corpus. Returns the pages of the jobs.
async fn order(office: &ConsoleCell) -> Vec<String> {
    let otto = office.console.login("otto").await;
    let token = otto.csrf("/lanes").await;
    let submit = async |path: &str, fields: &[(&str, &str)]| {
        let answer = otto.submit_bare(path, &[fields, &[("csrf", &token)]].concat()).await;
        assert_eq!(foreign(&answer.text()), Vec::<String>::new(), "{path} {fields:?}");
        answer
    };
    let mut jobs = Vec::new();
    for (place, line) in CORPUS.lines().enumerate() {
        let shop = format!("{line}.myshopify.com");
        // By the command and by forms: what is no filter is refused with the line in the answer.
        if place % 2 == 0 {
            for option in [format!("--topic={line}"), format!("--shop={shop}")] {
                let paused = office.cell.spillway(&["pause", &option]).await;
                assert!(paused.status.code().is_some_and(|code| code != 101), "{paused:?}");
            }
        } else {
            for field in [("topic", line), ("shop", shop.as_str())] {
                let answer = submit("/lanes/pause", &[("consumer", "http"), field]).await;
                assert!(answer.status < 500, "{}", answer.text());
            }
        }
        let fields = [("consumer", line), ("shop", line), ("expected", line), ("rate", line)];
        let answer = submit("/dead/drop", &fields).await;
        assert!((400..500).contains(&answer.status), "{}", answer.text());
        // Values of boxes.
        let fields = [("consumer", "http"), ("ids", line), ("ids", line)];
        let answer = submit("/dead/replay", &fields).await;
        assert!((400..500).contains(&answer.status), "{line}: {}", answer.text());
        for (verb, consumer, shop) in [
            ("/dead/drop", "http", shop.as_str()),
            ("/dead/replay", "http", shop.as_str()),
            ("/webhooks/drop", "http", shop.as_str()),
            // A job that fails, with the name of the consumer in its reason.
            ("/webhooks/drop", line, "a.example"),
        ] {
            // A few jobs of one caller may be unfinished.
            let answer = until_some("a job is taken or refused", SOON, async || {
                let answer = submit(verb, &[("consumer", consumer), ("shop", shop)]).await;
                (answer.status != 503).then_some(answer)
            })
            .await;
            assert!(answer.status < 500, "{}", answer.text());
            jobs.extend(answer.headers.text("location").map(str::to_owned));
        }
    }
    assert!(jobs.len() > 20, "{} jobs", jobs.len());
    // The last ones are kept.
    jobs.split_off(jobs.len().saturating_sub(60))
}

/// Paths with each string of the corpus as a parameter.
fn odd_paths() -> Vec<String> {
    let views: Vec<_> = routes().into_iter().filter(is_view).collect();
    let of_line = |line: &str| {
        let part = percent(line);
        let queries = [
            format!("/dead?shop={part}&topic={part}&resource={part}&app={part}"),
            format!("/dead?consumer={part}"),
            format!("/dead?since={part}&after={part}"),
            format!("/webhooks?id={part}"),
            format!("/webhooks?shop={part}&since={part}"),
            format!("/shops?shop={part}"),
            format!("/lanes?shop={part}"),
            format!("/audit?actor={part}&verb={part}"),
            format!("/gaps?shop={part}"),
            format!("/archive?consumer={part}&shop={part}&topic={part}&since={part}"),
            format!("/login?next={part}"),
            format!("/{part}"),
        ];
        let filled = views.iter().filter(|view| view.has_parameter());
        let filled: Vec<String> = filled.map(|view| view.filled(&part)).collect();
        queries.into_iter().chain(filled)
    };
    CORPUS.lines().flat_map(of_line).collect()
}

/// Checks the parts of pages that are sent as events.
async fn expect_streams(office: &ConsoleCell, jobs: &[String]) {
    let ada = office.program("ada");
    let number = |path: &String| {
        let path = path.split('?').next()?;
        path.strip_prefix("/jobs/")?.parse::<u64>().ok()
    };
    let last: BTreeSet<u64> = jobs.iter().filter_map(number).collect();
    let mut shown = 0;
    for stream in routes().iter().filter(|route| route.is_stream()) {
        let paths: Vec<String> = match stream.has_parameter() {
            true => last
                .iter()
                .rev()
                .take(20)
                .map(|number| stream.filled(&number.to_string()))
                .collect(),
            false => vec![stream.path.to_owned()],
        };
        for path in paths {
            let part = ada.first_event(&path).await;
            assert!(part.contains('<'), "{path}: {part}");
            assert_eq!(foreign(&part), Vec::<String>::new(), "{path}");
            shown += CORPUS.lines().filter(|line| part.contains(&escaped(line))).count();
        }
    }
    assert!(shown > 0, "no string of the corpus was in an event");
}

/// Checks that the table for spreadsheets is one line for each gap, and that no field is a formula.
async fn expect_csv(office: &ConsoleCell) {
    let answer = office.program("sue").get("/gaps.csv").await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let attachment = answer.headers.text("content-disposition").unwrap_or_default();
    assert!(attachment.starts_with("attachment"), "{attachment}");
    let text = answer.text();
    let rows: Vec<&str> = text.split_terminator("\r\n").collect();
    assert!(rows.len() > CORPUS.lines().count(), "{} rows", rows.len());
    for row in rows {
        let begin = row.trim_start_matches('"');
        assert!(!begin.starts_with(['=', '+', '-', '@']), "{row}");
    }
}

/// Checks that the API answers JSON to every string of the corpus in its paths and queries.
async fn expect_json(office: &ConsoleCell) {
    let ada = office.program("ada");
    let document = ada.json("/api/v1/openapi.json").await;
    let step = size(5, 1);
    for (number, route) in
        routes().iter().filter(|route| route.is_api() && route.is_read()).enumerate()
    {
        let parameters = document["paths"][route.path]["get"]["parameters"].as_array();
        let named = parameters.into_iter().flatten().filter(|one| one["in"] == "query");
        let names: Vec<&str> = named.map(|one| one["name"].as_str().expect("a name")).collect();
        for line in CORPUS.lines().skip(number % step).step_by(step) {
            let part = percent(line);
            let path = route.filled(&part);
            let all = names.iter().map(|name| format!("{name}={part}"));
            let whole = all.collect::<Vec<_>>().join("&");
            let each = names.iter().map(|name| format!("{path}?{name}={part}"));
            for path in each.chain([path.clone(), format!("{path}?{whole}")]) {
                let answer = ada.get(&path).await;
                assert!(answer.status < 500, "{path}: {} {}", answer.status, answer.text());
                let media_type = answer.headers.text("content-type").unwrap_or_default();
                assert!(media_type.contains("json"), "{path}: {media_type}");
                let parsed: Result<Value, _> = serde_json::from_slice(&answer.body);
                assert!(parsed.is_ok(), "{path}: {}", answer.text());
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_string_of_a_stranger_becomes_a_part_of_a_page() {
    let office = ConsoleCell::start(Cell::busy(), &[]).await;
    office.backend.behave(|receipt| match receipt.body_hash[0] % 4 {
        0 => Behaviour::ok(),
        1 => Behaviour::status(503),
        _ => Behaviour::status(422),
    });
    let taken = send(&office).await;
    let lines = CORPUS.lines().count();
    assert!(taken > 2 * lines, "only {taken} of {} were taken", 5 * lines);
    let some = lines as u64 / 2;
    until("some are dead letters", SOON, async || office.dead_letters().await > some).await;
    note_gaps(&office).await;
    let jobs = order(&office).await;
    let views = routes().into_iter().filter(is_view);
    let views: Vec<String> =
        views.filter(|view| !view.has_parameter()).map(|v| v.path.to_owned()).collect();
    let mut seen = Seen::default();
    for client in [office.program("ada"), office.program("pia")] {
        crawl(&client, &views, &mut seen).await;
        crawl(&client, &jobs, &mut seen).await;
        crawl(&client, &odd_paths(), &mut seen).await;
    }
    for view in SHOWING {
        let (pages, shown) = seen.0.get(view).unwrap_or_else(|| panic!("{view} was not seen"));
        assert!(!shown.is_empty(), "no string of the corpus was on {pages} pages of {view}");
        say(&format!("console: {view}: {pages} pages with {} strings of the corpus", shown.len()));
    }
    let shown = seen.lines().len();
    assert!(shown > lines / 2, "only {shown} strings of {lines} were on pages");
    expect_streams(&office, &jobs).await;
    expect_csv(&office).await;
    expect_json(&office).await;
    let part = office.console.output();
    assert!(!part.contains("panicked"), "{part}");
}

#[test]
fn every_view_is_known_to_show_strings_of_strangers_or_not_to() {
    let views: BTreeSet<&str> =
        routes().into_iter().filter(is_view).map(|view| view.path).collect();
    let known: BTreeSet<&str> = SHOWING.into_iter().chain(PLAIN).collect();
    assert_eq!(views, known, "add a new view to one of the lists");
}

#[test]
fn a_tag_of_a_stranger_is_seen() {
    for line in CORPUS.lines().filter(|line| line.contains('<') && line.contains('>')) {
        let page = format!("<!DOCTYPE html><html><p>{line}</p></html>");
        let found = foreign(&page);
        assert!(!found.is_empty(), "{line}");
        let page = format!("<p title=\"{}\">{}</p>", escaped(line), escaped(line));
        assert_eq!(foreign(&page), Vec::<String>::new(), "{line}");
    }
    let own = "<a href=\"/dead?shop=a%22&amp;after=1-0\" class=\"id\">x</a><input required>";
    assert_eq!(foreign(own), Vec::<String>::new());
    assert_eq!(foreign("<a href=\"//evil.example/\">x</a>").len(), 1);
    assert_eq!(foreign("<p onclick=\"x\">x</p>").len(), 1);
}
