//! The audit: random changes by five users over three ways are in it, each once, with nothing else.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use serde_json::{Value, json};
use stories::answer::Answer;
use stories::cell::Cell;
use stories::console::{ConsoleClient, percent};
use stories::console_cell::{ConsoleCell, REFUSED};
use stories::report::say;
use stories::seed::{chance, seed};
use stories::shop;
use stories::size::size;
use stories::until::until_some;

const SOON: Duration = Duration::from_secs(60);
/// Users of the console, who are also users of the machine.
const ACTORS: [&str; 5] = ["anna", "bert", "cleo", "dora", "emil"];
/// Ways, as the audit names them.
const WAYS: [&str; 3] = ["cli", "api", "console"];
/// Dead letters that an actor can replay or drop: one for each of the actor's changes, at most.
const LETTERS: [u64; 2] = [12, 200];

/// Change as the audit should have it: actor, way, verb, a part of its filter, count.
type Expected = (String, String, &'static str, String, u64);

/// One user, with a browser, a program and a shell.
struct Actor {
    name: &'static str,
    office: Arc<ConsoleCell>,
    browser: ConsoleClient,
    program: ConsoleClient,
    chance: StdRng,
    /// Shops of which only this actor pauses any, with the paused ones.
    shops: BTreeMap<u64, bool>,
    /// Webhook ids of dead letters that only this actor takes.
    letters: Vec<String>,
    done: Vec<Expected>,
}

impl Actor {
    async fn work(&mut self, changes: usize) {
        for _ in 0..changes {
            self.change().await;
        }
    }

    /// Makes one random change and notes it.
    async fn change(&mut self) {
        let way = *WAYS.choose(&mut self.chance).expect("three ways");
        match self.chance.random_range(0..20) {
            0..14 => self.pause_or_resume(way).await,
            14..19 => self.drop_letter(way).await,
            _ => self.replay_letter(way).await,
        }
    }

    async fn pause_or_resume(&mut self, way: &'static str) {
        let shops: Vec<u64> = self.shops.keys().copied().collect();
        let number = *shops.choose(&mut self.chance).expect("some shops");
        let is_paused = self.shops.insert(number, false).expect("it is known");
        if !is_paused {
            self.shops.insert(number, true);
        }
        let verb = if is_paused { "resume" } else { "pause" };
        let domain = shop::domain(number);
        match way {
            "cli" => self.shell(&[verb, "--shop", &domain]).await,
            "api" => {
                let path = format!("/api/v1/consumers/http/{verb}");
                let body = json!({ "selection": { "shop": domain } });
                let answer = self.program.post(&path, &body).await;
                assert_eq!(answer.status, 200, "{}", answer.text());
            }
            _ => {
                let fields = [("consumer", "http"), ("shop", domain.as_str())];
                let path = format!("/lanes/{verb}");
                let answer = self.browser.submit("/lanes", &path, &fields).await;
                assert_eq!(answer.status, 303, "{}", answer.text());
            }
        }
        self.note(way, verb, domain, 1);
    }

    async fn drop_letter(&mut self, way: &'static str) {
        self.take_letter(way, "dead drop", "drop").await;
    }

    async fn replay_letter(&mut self, way: &'static str) {
        self.take_letter(way, "dead replay", "replay").await;
    }

    async fn take_letter(&mut self, way: &'static str, name: &'static str, verb: &str) {
        let id = self.letters.pop().expect("enough dead letters");
        match way {
            "cli" => self.shell(&["dead", verb, "--webhook-id", &id, "--yes"]).await,
            "api" => {
                let path = format!("/api/v1/consumers/http/dead/{verb}");
                let body = json!({ "selection": { "webhook_id": id }, "expected": 1 });
                self.job(async |actor: &Self| actor.program.post(&path, &body).await).await;
            }
            _ => {
                let path = format!("/dead/{verb}");
                let fields = [("consumer", "http"), ("webhook_id", id.as_str()), ("expected", "1")];
                self.job(async |actor: &Self| actor.browser.submit("/dead", &path, &fields).await)
                    .await;
            }
        }
        self.note(way, name, id, 1);
    }

    /// Orders a job, again while others are busy, and waits until it is over.
    async fn job(&self, order: impl AsyncFn(&Self) -> Answer) {
        let id = until_some("a job is taken", 3 * SOON, async || {
            let answer = order(self).await;
            match answer.status {
                200 => {
                    let job: Value = serde_json::from_slice(&answer.body).expect("JSON");
                    job["id"].as_u64()
                }
                303 => {
                    let to = answer.headers.text("location").expect("a place");
                    job_in(to)
                }
                // Others are busy.
                429 | 503 => None,
                other => panic!("{other}: {}", answer.text()),
            }
        })
        .await;
        let job = self.program.job_over(id).await;
        assert_eq!(job["phase"], "done", "{job}");
    }

    /// Runs the operators' command as this user of the machine.
    async fn shell(&self, arguments: &[&str]) {
        let redis = self.office.cell.redis_url();
        let settings = [("REDIS_URL", redis.as_str()), ("USER", self.name)];
        let output = self.office.cell.run("spillway", arguments, &settings).await;
        assert!(output.status.success(), "{arguments:?}: {output:?}");
    }

    fn note(&mut self, way: &str, verb: &'static str, filter: String, count: u64) {
        let name = if way == "api" { program_of(self.name) } else { self.name.to_owned() };
        self.done.push((name, way.to_owned(), verb, filter, count));
    }
}

/// Number of the job whose page this is.
fn job_in(path: &str) -> Option<u64> {
    let rest = path.strip_prefix("/jobs/")?;
    rest.split('?').next()?.parse().ok()
}

/// Name of a user's program in the audit.
fn program_of(name: &str) -> String {
    format!("token:{name}-program")
}

/// All records of the audit that a query asks for, by its pages.
async fn records(client: &ConsoleClient, query: &str) -> Vec<Value> {
    let mut found = Vec::new();
    let mut after = String::new();
    loop {
        let page = client.json(&format!("/api/v1/audit?limit=50{query}{after}")).await;
        found.extend(page["records"].as_array().expect("records").iter().cloned());
        match page["next"].as_str() {
            Some(next) => after = format!("&after={}", percent(next)),
            None => return found,
        }
    }
}

fn text<'a>(record: &'a Value, key: &str) -> &'a str {
    record[key].as_str().unwrap_or_else(|| panic!("no {key} in {record}"))
}

/// Removes the record of each change; what is left was never made, or is there twice.
fn compare(done: &[Expected], mut records: Vec<Value>) {
    let mut missing = Vec::new();
    for (actor, way, verb, filter, count) in done {
        let place = records.iter().position(|record| {
            text(record, "actor") == actor
                && text(record, "way") == way
                && text(record, "verb") == *verb
                && text(record, "filter").contains(filter.as_str())
                && record["count"] == *count
        });
        match place {
            Some(place) => {
                records.swap_remove(place);
            }
            None => missing.push(format!("{actor} {way} {verb} {filter} {count}")),
        }
    }
    assert!(missing.is_empty(), "not in the audit:\n{}\nleft: {records:#?}", missing.join("\n"));
    assert!(records.is_empty(), "in the audit, and never made: {records:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_changes_by_five_users_over_three_ways_are_all_in_the_audit() {
    let changes: usize = size(60, 1_000);
    let seed = seed("console_audit", 23);
    let people = ACTORS.map(|name| (name, "operator", false));
    let office = Arc::new(ConsoleCell::start_for(Cell::busy(), &[], &people).await);
    let letters = size(LETTERS[0], LETTERS[1]);
    let mut actors = Vec::new();
    for (place, name) in (0..).zip(ACTORS) {
        let first = 100 + 20 * place;
        actors.push(Actor {
            name,
            browser: office.console.login(name).await,
            program: office.program(name),
            chance: chance(seed, place),
            shops: (first..first + 20).map(|shop| (shop, false)).collect(),
            letters: office.bury(REFUSED[0], letters).await,
            office: Arc::clone(&office),
            done: Vec::new(),
        });
    }
    office.heal();
    let each = changes / ACTORS.len();
    let Ok([mut anna, mut bert, mut cleo, mut dora, mut emil]) = <[Actor; 5]>::try_from(actors)
    else {
        panic!("five actors");
    };
    tokio::join!(
        anna.work(each),
        bert.work(each),
        cleo.work(each),
        dora.work(each),
        emil.work(each)
    );
    let actors = [anna, bert, cleo, dora, emil];
    let done: Vec<Expected> = actors.iter().flat_map(|actor| actor.done.clone()).collect();
    assert_eq!(done.len(), each * ACTORS.len());
    let sue = office.program("sue");
    compare(&done, records(&sue, "").await);
    let told = office.told(&["audit", "-o", "json"]).await;
    for name in ACTORS {
        assert!(told.contains(name), "{name} is not in `spillway audit`: {told}");
    }
    let page = sue.page("/audit").await;
    let latest = &records(&sue, "").await[0];
    assert!(page.contains(text(latest, "actor")) && page.contains(text(latest, "verb")), "{page}");
    let of_one = records(&sue, "&actor=anna").await.len();
    let own = done.iter().filter(|(actor, ..)| actor == "anna").count();
    assert_eq!(of_one, own, "records of one actor");
    say(&format!("console: {} changes by {} users are in the audit", done.len(), ACTORS.len()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_that_fails_or_is_refused_is_never_recorded_as_made() {
    let office = ConsoleCell::start(Cell::shared(), &[]).await;
    let (otto, sue) = (office.program("otto"), office.program("sue"));
    let body = json!({ "selection": { "shop": shop::domain(8) } });
    let answer = otto.post("/api/v1/consumers/http/resume", &body).await;
    assert!((400..500).contains(&answer.status), "nothing is paused: {}", answer.text());
    let answer = sue.post("/api/v1/consumers/http/pause", &body).await;
    assert_eq!(answer.status, 403, "{}", answer.text());
    let answer = otto.post("/api/v1/consumers/nobody/pause", &body).await;
    assert!((400..500).contains(&answer.status), "no such consumer: {}", answer.text());
    let made = records(&sue, "").await.into_iter().filter(|record| !record["count"].is_null());
    assert_eq!(made.collect::<Vec<_>>(), Vec::<Value>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_change_is_made_that_the_audit_does_not_take() {
    let office = ConsoleCell::start(Cell::shared(), &[]).await;
    let otto = office.program("otto");
    let body = json!({ "selection": { "shop": shop::domain(8) } });
    // Something else lies where the audit is kept.
    office.redis.command::<String>(&["SET", "{spillway}:audit", "x"]).await;
    let answer = otto.post("/api/v1/consumers/http/pause", &body).await;
    assert!(answer.status >= 400, "{}", answer.text());
    let output = office.cell.spillway(&["pause", "--shop", &shop::domain(8)]).await;
    assert!(!output.status.success(), "{output:?}");
    assert_eq!(office.pauses().await, [""; 0]);
    office.redis.command::<u64>(&["DEL", "{spillway}:audit"]).await;
    let answer = otto.post("/api/v1/consumers/http/pause", &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(office.pauses().await.len(), 1);
}
