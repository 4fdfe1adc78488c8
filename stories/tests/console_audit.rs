//! The audit: random changes by five users over three ways are in it, each once and as it was made, with nothing else.
//! [`console_audit_ends`](crate::console_audit_ends) has the verbs of one way, and changes that fail.

use std::collections::BTreeMap;
use std::process::Output;
use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use serde_json::{Map, Value, json};
use stories::answer::Answer;
use stories::cell::Cell;
use stories::console::{ConsoleClient, percent};
use stories::console_cell::{ConsoleCell, REFUSED};
use stories::report::say;
use stories::seed::{chance, seed};
use stories::shop;
use stories::size::size;
use stories::until::{until, until_some};

const SOON: Duration = Duration::from_secs(60);
/// Users of the console, who are also users of the machine.
const ACTORS: [&str; 5] = ["anna", "bert", "cleo", "dora", "emil"];
/// Ways, as the audit names them.
const WAYS: [&str; 3] = ["cli", "api", "console"];
/// Shops that one actor pauses.
const SHOPS_EACH: u64 = 20;

/// Names of a verb: in the audit, in a shell, in the API, and of the form.
#[derive(Clone, Copy)]
struct Verb {
    name: &'static str,
    shell: &'static [&'static str],
    api: &'static str,
    form: &'static str,
}

const PAUSE: Verb = Verb { name: "pause", shell: &["pause"], api: "pause", form: "/lanes/pause" };
const RESUME: Verb =
    Verb { name: "resume", shell: &["resume"], api: "resume", form: "/lanes/resume" };
const DEAD_DROP: Verb =
    Verb { name: "dead drop", shell: &["dead", "drop"], api: "dead/drop", form: "/dead/drop" };
const DEAD_REPLAY: Verb = Verb {
    name: "dead replay",
    shell: &["dead", "replay"],
    api: "dead/replay",
    form: "/dead/replay",
};
const QUEUE_DROP: Verb =
    Verb { name: "queue drop", shell: &["queue", "drop"], api: "drop", form: "/webhooks/drop" };
/// Verbs that can be had by every way.
const VERBS: [Verb; 5] = [PAUSE, RESUME, DEAD_DROP, DEAD_REPLAY, QUEUE_DROP];

/// One thing that an actor does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Pause,
    Resume,
    DropLetter,
    ReplayLetter,
    DropWaiting,
    /// A replay that is undone before it begins.
    Undo,
    /// A dry run.
    Count,
    /// Another number than the one that matches.
    WrongCount,
    /// A pause of something that is paused.
    PauseAgain,
    /// The end of a pause that is not there.
    ResumeOther,
    UnknownConsumer,
    /// A caller who may not.
    Forbidden,
    /// A change that begins and fails.
    Fail,
}

impl Step {
    const ALL: [Self; 13] = [
        Self::Pause,
        Self::Resume,
        Self::DropLetter,
        Self::ReplayLetter,
        Self::DropWaiting,
        Self::Undo,
        Self::Count,
        Self::WrongCount,
        Self::PauseAgain,
        Self::ResumeOther,
        Self::UnknownConsumer,
        Self::Forbidden,
        Self::Fail,
    ];

    /// A random step: most of them change something, and few have to wait.
    fn random(chance: &mut StdRng) -> Self {
        match chance.random_range(0..100) {
            0..24 => Self::Pause,
            24..48 => Self::Resume,
            48..62 => Self::DropLetter,
            62..76 => Self::DropWaiting,
            76..80 => Self::ReplayLetter,
            _ => *Self::ALL.choose(chance).expect("some steps"),
        }
    }
}

/// Steps of all actors: each by each way, and random ones up to this number.
fn plan(chance: &mut StdRng, number: usize) -> Vec<(Step, &'static str)> {
    let mut steps: Vec<_> =
        Step::ALL.into_iter().flat_map(|step| WAYS.map(|way| (step, way))).collect();
    while steps.len() < number {
        let step = Step::random(chance);
        let way = *WAYS.choose(chance).expect("three ways");
        steps.push((step, way));
    }
    steps.shuffle(chance);
    steps
}

/// An order to change something.
#[derive(Clone, Copy)]
struct Order<'a> {
    verb: Verb,
    consumer: &'static str,
    /// Filters by name, as the API has them.
    selection: &'a [(&'static str, String)],
    expected: Option<u64>,
}

impl<'a> Order<'a> {
    fn new(verb: Verb, selection: &'a [(&'static str, String)], expected: Option<u64>) -> Self {
        Self { verb, consumer: "http", selection, expected }
    }

    /// Selection in the words of the audit.
    fn filter(&self) -> String {
        let words = self.selection.iter().map(|(name, value)| format!("{} {value}", flag(name)));
        words.collect::<Vec<_>>().join(", ")
    }

    fn arguments(&self) -> Vec<String> {
        let words = self.verb.shell.iter().map(|word| (*word).to_owned());
        let flags = self.selection.iter().map(|(name, value)| format!("--{}={value}", flag(name)));
        let consumer = format!("--consumer={}", self.consumer);
        let yes = self.expected.map(|_| "--yes".to_owned());
        words.chain([consumer]).chain(flags).chain(yes).collect()
    }

    async fn post(&self, program: &ConsoleClient) -> Answer {
        let selection = self.selection.iter();
        let selection: Map<String, Value> =
            selection.map(|(name, value)| ((*name).to_owned(), value.as_str().into())).collect();
        let mut body = json!({ "selection": selection });
        if let Some(expected) = self.expected {
            body["expected"] = expected.into();
        }
        let path = format!("/api/v1/consumers/{}/{}", self.consumer, self.verb.api);
        program.post(&path, &body).await
    }

    async fn submit(&self, browser: &ConsoleClient, token: &str) -> Answer {
        let expected = self.expected.map(|expected| expected.to_string());
        let mut fields = vec![("consumer", self.consumer), ("csrf", token)];
        fields.extend(self.selection.iter().map(|(name, value)| (*name, value.as_str())));
        fields.extend(expected.as_deref().map(|expected| ("expected", expected)));
        browser.submit_bare(self.verb.form, &fields).await
    }
}

/// Name of a filter as flags and the audit have it.
fn flag(name: &str) -> String {
    name.replace('_', "-")
}

/// Answer to an order.
#[derive(Debug)]
enum Ordered {
    Made,
    Job(u64),
    Refused(String),
}

/// Reads an answer; `None` if the console is busy.
fn ordered(answer: &Answer) -> Option<Ordered> {
    match answer.status {
        200 => {
            let made: Value = serde_json::from_slice(&answer.body).expect("JSON");
            Some(made["id"].as_u64().map_or(Ordered::Made, Ordered::Job))
        }
        303 => {
            let to = answer.headers.text("location").expect("a place");
            Some(job_in(to).map_or(Ordered::Made, Ordered::Job))
        }
        429 | 503 => None,
        400..500 => Some(Ordered::Refused(answer.text())),
        other => panic!("{other}: {}", answer.text()),
    }
}

/// Number of the job whose page this is.
fn job_in(path: &str) -> Option<u64> {
    let rest = path.strip_prefix("/jobs/")?;
    rest.split('?').next()?.parse().ok()
}

/// One user, with a browser, a program and a shell.
struct Actor {
    name: &'static str,
    office: Arc<ConsoleCell>,
    browser: ConsoleClient,
    /// Token of the forms of the browser's session.
    token: String,
    program: ConsoleClient,
    /// Browser of a viewer, and the token of its forms.
    viewer: (ConsoleClient, String),
    chance: StdRng,
    /// Shops of which only this actor pauses any, with the paused ones.
    shops: BTreeMap<u64, bool>,
    /// Webhook ids of dead letters that only this actor takes. One of them is left.
    letters: Vec<String>,
    /// Webhook ids of webhooks that wait, and that only this actor drops.
    waiting: Vec<String>,
    /// Records that the audit should have.
    done: Vec<Value>,
}

/// Filter of the pause of a shop. Some of them have two parts.
fn pause_of(number: u64) -> Vec<(&'static str, String)> {
    let topic = number.is_multiple_of(3).then(|| ("topic", "orders/*".to_owned()));
    [("shop", shop::domain(number))].into_iter().chain(topic).collect()
}

fn one(id: &str) -> [(&'static str, String); 1] {
    [("webhook_id", id.to_owned())]
}

impl Actor {
    async fn work(&mut self, steps: &[(Step, &'static str)]) {
        for (step, way) in steps {
            self.take(*step, way).await;
        }
    }

    async fn take(&mut self, step: Step, way: &'static str) {
        match step {
            Step::Pause => self.set_pause(way, true).await,
            Step::Resume => self.set_pause(way, false).await,
            Step::DropLetter | Step::ReplayLetter => {
                let id = self.letters.pop().expect("enough dead letters");
                let verb = if step == Step::DropLetter { DEAD_DROP } else { DEAD_REPLAY };
                self.make(way, Order::new(verb, &one(&id), Some(1))).await;
            }
            Step::DropWaiting => {
                let id = self.waiting.pop().expect("enough waiting webhooks");
                self.make(way, Order::new(QUEUE_DROP, &one(&id), Some(1))).await;
            }
            Step::PauseAgain => self.pause_again(way).await,
            Step::Fail => self.fail().await,
            Step::Undo if way != "cli" => self.undo(way).await,
            Step::Count | Step::Undo => self.count(way).await,
            Step::WrongCount | Step::ResumeOther | Step::UnknownConsumer => {
                self.be_refused(step, way).await;
            }
            Step::Forbidden => self.be_forbidden(way).await,
        }
    }

    fn shop(&mut self, is_paused: bool) -> Option<u64> {
        let all = self.shops.iter().filter(|(_, paused)| **paused == is_paused);
        let all: Vec<u64> = all.map(|(number, _)| *number).collect();
        all.choose(&mut self.chance).copied()
    }

    /// Begins or ends a pause. If there is none to end, it begins one first, and the other way round.
    async fn set_pause(&mut self, way: &'static str, is_paused: bool) {
        let number = match self.shop(!is_paused) {
            Some(number) => number,
            None => {
                let number = self.shop(is_paused).expect("some shops");
                self.turn(way, number, !is_paused).await;
                number
            }
        };
        self.turn(way, number, is_paused).await;
    }

    async fn turn(&mut self, way: &'static str, number: u64, is_paused: bool) {
        let verb = if is_paused { PAUSE } else { RESUME };
        self.make(way, Order::new(verb, &pause_of(number), None)).await;
        self.shops.insert(number, is_paused);
    }

    async fn pause_again(&mut self, way: &'static str) {
        if self.shop(true).is_none() {
            self.set_pause(way, true).await;
        }
        let number = self.shop(true).expect("one is paused");
        let ordered = self.send(way, Order::new(PAUSE, &pause_of(number), None)).await;
        assert!(matches!(ordered, Ordered::Made), "{ordered:?}");
    }

    /// Makes a change, and notes it.
    async fn make(&mut self, way: &'static str, order: Order<'_>) {
        match self.send(way, order).await {
            Ordered::Made => {}
            Ordered::Job(id) => assert_eq!(self.program.job_over(id).await["phase"], "done"),
            Ordered::Refused(told) => panic!("{way} {}: {told}", order.verb.name),
        }
        self.note(way, order.verb.name, &order.filter(), Some(1));
    }

    /// Counts what a change would change.
    async fn count(&self, way: &'static str) {
        let id = self.letters[0].clone();
        match self.send(way, Order::new(DEAD_DROP, &one(&id), None)).await {
            Ordered::Job(id) => {
                let job = self.program.job_over(id).await;
                assert_eq!((&job["phase"], &job["total"]), (&json!("counted"), &json!(1)), "{job}");
            }
            Ordered::Made => assert_eq!(way, "cli", "a dry run is a job"),
            Ordered::Refused(told) => panic!("{way}: {told}"),
        }
    }

    async fn undo(&self, way: &'static str) {
        let id = self.letters[0].clone();
        let ordered = self.send(way, Order::new(DEAD_REPLAY, &one(&id), Some(1))).await;
        let Ordered::Job(id) = ordered else { panic!("{way}: {ordered:?}") };
        // It may still count, which can be undone too.
        let answer = self.program.post(&format!("/api/v1/jobs/{id}/undo"), &json!({})).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(self.program.job_over(id).await["phase"], "undone");
    }

    async fn be_refused(&self, step: Step, way: &'static str) {
        let letter = one(&self.letters[0]);
        // A shop that nobody pauses.
        let other = [("shop", shop::domain(99))];
        let order = match step {
            // A shell has no number to confirm.
            Step::WrongCount if way == "cli" => return self.count(way).await,
            Step::WrongCount => Order::new(DEAD_DROP, &letter, Some(2)),
            Step::ResumeOther => Order::new(RESUME, &other, None),
            _ => Order { consumer: "nobody", ..Order::new(PAUSE, &other, None) },
        };
        match self.send(way, order).await {
            Ordered::Refused(_) => {}
            Ordered::Job(id) => {
                let job = self.program.job_over(id).await;
                assert!(job["phase"].get("failed").is_some(), "{job}");
            }
            Ordered::Made => panic!("{way} {}: it is made", order.verb.name),
        }
    }

    /// Tries a change as a viewer, and by a form without the token of its session.
    async fn be_forbidden(&self, way: &'static str) {
        let selection = pause_of(99);
        let order = Order::new(PAUSE, &selection, None);
        match way {
            "api" => {
                let viewer = self.office.program("vera");
                assert_eq!(order.post(&viewer).await.status, 403);
            }
            "console" => {
                let (browser, token) = &self.viewer;
                assert_eq!(order.submit(browser, token).await.status, 403);
                assert_eq!(order.submit(&self.browser, token).await.status, 403);
            }
            // A shell is who may open the socket of Redis.
            _ => {
                let nowhere = [("REDIS_URL", "unix:///nonexistent/redis.sock")];
                let arguments = order.arguments();
                let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
                let output = self.office.cell.run("spillway", &arguments, &nowhere).await;
                assert!(!output.status.success(), "{output:?}");
            }
        }
    }

    /// Makes a change that fails, which only a shell can do at will.
    async fn fail(&mut self) {
        let output = self.shell(&["replay", "cancel", "--consumer=http", "no-such-replay"]).await;
        assert!(!output.status.success(), "{output:?}");
        self.note("cli", "replay cancel", "replay no-such-replay", None);
    }

    /// Gives an order, again while others are busy.
    async fn send(&self, way: &str, order: Order<'_>) -> Ordered {
        until_some("an order is taken", 3 * SOON, async || match way {
            "cli" => {
                let arguments = order.arguments();
                let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
                let output = self.shell(&arguments).await;
                let told = String::from_utf8_lossy(&output.stderr).into_owned();
                Some(if output.status.success() { Ordered::Made } else { Ordered::Refused(told) })
            }
            "api" => ordered(&order.post(&self.program).await),
            _ => ordered(&order.submit(&self.browser, &self.token).await),
        })
        .await
    }

    /// Runs the operators' command as this user of the machine.
    async fn shell(&self, arguments: &[&str]) -> Output {
        let redis = self.office.cell.redis_url();
        let settings = [("REDIS_URL", redis.as_str()), ("USER", self.name)];
        self.office.cell.run("spillway", arguments, &settings).await
    }

    fn note(&mut self, way: &str, verb: &str, filter: &str, count: Option<u64>) {
        let name = if way == "api" { program_of(self.name) } else { self.name.to_owned() };
        let is_failed = count.is_none();
        self.done.push(json!([name, way, verb, "http", filter, count, is_failed]));
    }
}

/// Name of a user's program in the audit.
fn program_of(name: &str) -> String {
    format!("token:{name}-program")
}

/// Facts of a record, as an actor notes them.
pub(crate) fn fact_of(record: &Value) -> Value {
    let facts = ["actor", "way", "verb", "consumer", "filter", "count"].map(|key| &record[key]);
    let [actor, way, verb, consumer, filter, count] = facts;
    json!([actor, way, verb, consumer, filter, count, !record["failure"].is_null()])
}

/// Removes the record of each change; what is left was never made, or is there twice.
pub(crate) fn compare<'a>(
    what: &str,
    done: impl IntoIterator<Item = &'a Value>,
    records: &[Value],
) {
    let mut left: Vec<Value> = records.iter().map(fact_of).collect();
    let mut missing = Vec::new();
    for fact in done {
        match left.iter().position(|other| other == fact) {
            Some(place) => {
                left.swap_remove(place);
            }
            None => missing.push(fact.to_string()),
        }
    }
    let left: Vec<String> = left.iter().map(Value::to_string).collect();
    assert!(
        missing.is_empty() && left.is_empty(),
        "{what}: made and not in it:\n{}\nin it and not made:\n{}",
        missing.join("\n"),
        left.join("\n")
    );
}

/// All records that a query asks for.
pub(crate) async fn records(client: &ConsoleClient, query: &str) -> Vec<Value> {
    client.rows(&format!("/api/v1/audit?{query}"), "records", 50).await
}

/// Records as the command prints them.
async fn printed(office: &ConsoleCell, more: &[&str]) -> Vec<Value> {
    let told = office.told(&[&["audit", "-o", "json"], more].concat()).await;
    told.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// Compares what was made with the audit, as a whole and by actor and verb, by the API and the command.
async fn compare_all(office: &ConsoleCell, client: &ConsoleClient, done: &[Value]) {
    compare("the API", done, &records(client, "").await);
    compare("the command", done, &printed(office, &[]).await);
    let names = ACTORS.into_iter().flat_map(|name| [name.to_owned(), program_of(name)]);
    for name in names {
        let name = name.as_str();
        let own = || done.iter().filter(move |fact| fact[0] == name);
        let found = records(client, &format!("actor={}&", percent(name))).await;
        compare(&format!("the API, of {name}"), own(), &found);
        let found = printed(office, &["--since", "1h", "--actor", name]).await;
        compare(&format!("the command, of {name}"), own(), &found);
    }
    for verb in VERBS.map(|verb| verb.name).into_iter().chain(["replay cancel", "no verb"]) {
        let own = || done.iter().filter(move |fact| fact[2] == verb);
        let found = records(client, &format!("verb={}&", percent(verb))).await;
        compare(&format!("the API, {verb}"), own(), &found);
        let found = printed(office, &["--verb", verb]).await;
        compare(&format!("the command, {verb}"), own(), &found);
    }
}

/// Checks that the pages show the same rows as the API, page by page.
async fn compare_pages(client: &ConsoleClient) {
    let mut after = String::new();
    loop {
        let query = format!("limit=20{after}");
        let list = client.json(&format!("/api/v1/audit?{query}")).await;
        let page = client.page(&format!("/audit?{query}")).await;
        let rows = list["records"].as_array().expect("records");
        assert_eq!(page.matches("\"quiet\">by ").count(), rows.len(), "{page}");
        for row in rows {
            let shown = ["actor", "way", "verb", "filter"].map(|key| row[key].as_str());
            assert!(shown.iter().flatten().all(|text| page.contains(*text)), "{row}: {page}");
        }
        match list["next"].as_str() {
            Some(next) => after = format!("&after={}", percent(next)),
            None => return,
        }
    }
}

/// Pauses a shop of the actor by its shell, and stores webhooks of it, which wait.
async fn hold(actor: &mut Actor, number: u64, count: u64) {
    let metric = async |actor: &Actor| actor.office.downstreamer.metric("spillway_pauses").await;
    let before = metric(&*actor).await.unwrap_or(0.0);
    let selection = [("shop", shop::domain(number))];
    actor.make("cli", Order::new(PAUSE, &selection, None)).await;
    // Webhooks that come before the downstreamer has read the pause would be delivered.
    let is_read = async || metric(&*actor).await > Some(before);
    until("the pause is read", SOON, is_read).await;
    actor.waiting = actor.office.store(number, count).await;
}

/// One actor for each part of the steps, with what it needs for them.
async fn actors(office: &Arc<ConsoleCell>, steps: &[&[(Step, &'static str)]]) -> Vec<Actor> {
    let vera = office.console.login("vera").await;
    let viewer = (vera.clone(), vera.csrf("/").await);
    let seed = seed("console_audit, actors", 23);
    let mut actors = Vec::new();
    for ((place, name), own) in (0..).zip(ACTORS).zip(steps) {
        let needed = |wanted: &[Step]| {
            let all = own.iter().filter(|(step, _)| wanted.contains(step));
            u64::try_from(all.count()).expect("a small number")
        };
        let letters = needed(&[Step::DropLetter, Step::ReplayLetter]) + 1;
        let first = 100 + SHOPS_EACH * place;
        let browser = office.console.login(name).await;
        let mut actor = Actor {
            name,
            token: browser.csrf("/lanes").await,
            browser,
            program: office.program(name),
            viewer: viewer.clone(),
            chance: chance(seed, place),
            shops: (first..first + SHOPS_EACH).map(|shop| (shop, false)).collect(),
            letters: office.bury(REFUSED[0], letters).await,
            waiting: Vec::new(),
            office: Arc::clone(office),
            done: Vec::new(),
        };
        hold(&mut actor, 300 + place, needed(&[Step::DropWaiting]) + 1).await;
        actors.push(actor);
    }
    actors
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_changes_by_five_users_over_three_ways_are_all_in_the_audit() {
    let number: usize = size(60, 1_000);
    let steps = plan(&mut chance(seed("console_audit", 23), 99), number);
    let steps: Vec<_> = steps.chunks(steps.len().div_ceil(ACTORS.len())).collect();
    let people = ACTORS.map(|name| (name, "operator", false));
    let office = Arc::new(ConsoleCell::start_for(Cell::busy(), &[], &people).await);
    let actors = actors(&office, &steps).await;
    office.heal();
    let Ok([mut anna, mut bert, mut cleo, mut dora, mut emil]) = <[Actor; 5]>::try_from(actors)
    else {
        panic!("five actors");
    };
    tokio::join!(
        anna.work(steps[0]),
        bert.work(steps[1]),
        cleo.work(steps[2]),
        dora.work(steps[3]),
        emil.work(steps[4])
    );
    let actors = [anna, bert, cleo, dora, emil];
    let done: Vec<Value> = actors.iter().flat_map(|actor| actor.done.clone()).collect();
    for verb in VERBS {
        for way in WAYS {
            let is_there = done.iter().any(|fact| fact[1] == way && fact[2] == verb.name);
            assert!(is_there, "{} by {way} was not tried", verb.name);
        }
    }
    let sue = office.program("sue");
    compare_all(&office, &sue, &done).await;
    compare_pages(&sue).await;
    // What was made is all that was made.
    let letters: usize = actors.iter().map(|actor| actor.letters.len()).sum();
    assert_eq!(office.dead_letters().await, letters as u64);
    let paused = actors.iter().flat_map(|actor| actor.shops.values()).filter(|paused| **paused);
    assert_eq!(office.pauses().await.len(), paused.count() + ACTORS.len());
    say(&format!(
        "console: {} changes of {number} steps by {} users are in the audit",
        done.len(),
        ACTORS.len()
    ));
}
