//! Strings of strangers: shops, topics, ids, headers and bodies that try to become part of a page.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use serde_json::json;
use stories::behaviour::Behaviour;
use stories::cell::Cell;
use stories::client::post;
use stories::console::{ConsoleClient, percent};
use stories::console_cell::ConsoleCell;
use stories::report::say;
use stories::until::until;
use stories::webhook::Webhook;

const SOON: Duration = Duration::from_secs(60);
/// One string in each line.
const CORPUS: &str = include_str!("console/hostile.txt");
/// Pages that one person looks at, beside those at the start.
const PAGES_MAX: usize = 200;
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

/// Looks at all pages that links lead to, from these on. Returns the lines of the corpus that it saw.
async fn crawl(who: &str, client: &ConsoleClient, from: &[String]) -> BTreeSet<usize> {
    let mut to_do: VecDeque<String> = from.iter().cloned().collect();
    let mut known: BTreeSet<String> = from.iter().cloned().collect();
    let mut seen = BTreeSet::new();
    let mut pages = 0;
    while let Some(path) = to_do.pop_front().filter(|_| pages < from.len() + PAGES_MAX) {
        let answer = client.get(&path).await;
        assert!(answer.status < 500, "{who}: {path}: {} {}", answer.status, answer.text());
        let media_type = answer.headers.text("content-type").unwrap_or_default();
        if !media_type.starts_with("text/html") {
            continue;
        }
        pages += 1;
        let page = answer.text();
        let found = foreign(&page);
        assert!(found.is_empty(), "{who}: {path} ({}): {found:#?}", answer.status);
        let lines = CORPUS.lines().enumerate();
        seen.extend(
            lines.filter(|(_, line)| page.contains(&escaped(line))).map(|(place, _)| place),
        );
        for tag in tags(&page).into_iter().filter(|tag| tag.starts_with("<a ")) {
            let links = attributes(tag).into_iter().filter(|(name, _)| name == "href");
            for (_, link) in links {
                let link = unescaped(&link);
                let is_page = link.starts_with('/') && !link.starts_with("/assets/");
                if is_page && !link.contains('#') && known.insert(link.clone()) {
                    to_do.push_back(link);
                }
            }
        }
    }
    say(&format!("console: {who} saw {pages} pages and {} strings of the corpus", seen.len()));
    seen
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
    let mut paths: Vec<String> = Vec::new();
    let otto = office.console.login("otto").await;
    for (place, line) in CORPUS.lines().enumerate() {
        // Pauses, audit records and jobs with it, ordered by the command and by forms.
        if place % 3 == 0 {
            let option = format!("--topic={line}");
            let paused = office.cell.spillway(&["pause", &option]).await;
            assert!(paused.status.code().is_some_and(|code| code != 101), "{paused:?}");
        } else if place % 3 == 1 {
            let fields = [("consumer", "http"), ("topic", line)];
            let answer = otto.submit("/lanes", "/lanes/pause", &fields).await;
            assert!(answer.status < 500 && foreign(&answer.text()).is_empty(), "{}", answer.text());
        }
        let fields = [("consumer", line), ("shop", line), ("expected", line), ("rate", line)];
        let answer = otto.submit("/dead", "/dead/drop", &fields).await;
        assert!((400..500).contains(&answer.status), "{}", answer.text());
        assert_eq!(foreign(&answer.text()), Vec::<String>::new(), "{line}");
        // Values of boxes.
        let fields = [("consumer", "http"), ("ids", line), ("ids", line)];
        let answer = otto.submit("/dead", "/dead/replay", &fields).await;
        assert!((400..500).contains(&answer.status), "{line}: {}", answer.text());
        assert_eq!(foreign(&answer.text()), Vec::<String>::new(), "{line}");
        let part = percent(line);
        paths.extend([
            format!("/dead?shop={part}&topic={part}&resource={part}&app={part}"),
            format!("/dead?consumer={part}"),
            format!("/dead?since={part}&after={part}"),
            format!("/webhooks?id={part}"),
            format!("/webhooks?shop={part}&since={part}"),
            format!("/webhooks/{part}"),
            format!("/shops/{part}"),
            format!("/shops?shop={part}"),
            format!("/lanes?shop={part}"),
            format!("/audit?actor={part}&verb={part}"),
            format!("/gaps?shop={part}"),
            format!("/login?next={part}"),
            format!("/archive?consumer={part}&shop={part}&topic={part}&since={part}"),
            format!("/jobs/{part}"),
            format!("/{part}"),
        ]);
    }
    let views =
        ["/", "/lanes", "/webhooks", "/dead", "/archive", "/shops", "/gaps", "/audit", "/doctor"];
    let views = views.map(str::to_owned);
    let mut seen = BTreeSet::new();
    for (who, client) in [("ada", office.program("ada")), ("pia", office.program("pia"))] {
        seen.extend(crawl(who, &client, &views).await);
        crawl(who, &client, &paths).await;
    }
    assert!(seen.len() > lines / 2, "only {} strings of {lines} were on pages", seen.len());
    let part = office.console.output();
    assert!(!part.contains("panicked"), "{part}");
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
