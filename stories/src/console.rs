//! A console of a cell, and its clients: a browser with a session, a program with an API token, nobody.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use crate::answer::Answer;
use crate::binaries;
use crate::cell::{Cell, Settings};
use crate::client::Connection;
use crate::port;
use crate::process::Process;
use crate::until::{until, until_some};

/// Time within which the console answers, even on a busy machine.
const READY_WITHIN: Duration = Duration::from_secs(20);
/// Longer than any request may take, to see the answer that would have come too late.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// A replay waits for ten seconds, and others may run before it.
const JOB_WITHIN: Duration = Duration::from_secs(120);

/// A started console. Signals and restarts are those of [`Process`].
#[derive(Debug)]
pub struct ConsoleServer {
    process: Process,
    address: SocketAddr,
}

/// Files with the users and API tokens of a console.
#[derive(Debug)]
pub struct Accounts {
    users: PathBuf,
    tokens: PathBuf,
}

/// Sends requests to a console, with the credentials that it has.
#[derive(Clone, Debug)]
pub struct ConsoleClient {
    address: SocketAddr,
    headers: Vec<(String, String)>,
}

/// A watcher of a stream of events, until it is dropped.
#[derive(Debug)]
pub struct Watcher {
    reading: JoinHandle<()>,
    events: Arc<AtomicU64>,
}

impl Watcher {
    /// Number of events that it has seen.
    pub fn events(&self) -> u64 {
        self.events.load(Ordering::Relaxed)
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

impl ConsoleServer {
    /// Starts a console of the cell and waits until it answers.
    pub async fn start(cell: &Cell, settings: Settings<'_>) -> Self {
        let console = Self::starting(cell, port::free(), settings);
        let answers = async || console.nobody().try_get("/login").await.is_some();
        until("the console answers", READY_WITHIN, answers).await;
        console
    }

    /// Starts a console on this address, without waiting.
    pub fn starting(cell: &Cell, address: SocketAddr, settings: Settings<'_>) -> Self {
        let file = cell.directory().join(format!("console-{}.env", address.port()));
        let listen = address.to_string();
        let own = [("CONSOLE_LISTEN", listen.as_str())];
        let all = settings.iter().chain(&own);
        let lines: Vec<String> = all.map(|(name, value)| format!("{name}={value}\n")).collect();
        fs::write(&file, lines.concat()).expect("write the console's settings");
        let file = file.to_str().expect("a plain path");
        let mut arguments = vec!["console", "--env-file", file];
        // A cell's own commands have it in their environment, which goes before a file.
        if let Some((_, url)) = settings.iter().find(|(name, _)| *name == "REDIS_URL") {
            arguments.extend(["--redis-url", *url]);
        }
        let process = cell.spillway_starting(&arguments);
        Self { process, address }
    }

    /// Starts a console on loopback where everybody has this role.
    pub async fn open_to_all(cell: &Cell, role: &str) -> Self {
        Self::start(cell, &[("CONSOLE_ANONYMOUS_ROLE", role)]).await
    }

    /// Address on which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// URL of the overview.
    pub fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// A client without any credential.
    pub fn nobody(&self) -> ConsoleClient {
        ConsoleClient { address: self.address, headers: Vec::new() }
    }

    /// A browser on a page of this console, not logged in.
    pub fn browser(&self) -> ConsoleClient {
        self.nobody().header("Sec-Fetch-Site", "same-origin")
    }

    /// A program with this API token.
    pub fn program(&self, token: &str) -> ConsoleClient {
        self.nobody().header("Authorization", &format!("Bearer {token}"))
    }

    /// Logs in by the form, in a browser that has `cookie` before. `None` if the console refuses.
    pub async fn login_with(
        &self,
        cookie: Option<&str>,
        name: &str,
        password: &str,
    ) -> Option<ConsoleClient> {
        let browser = match cookie {
            Some(cookie) => self.browser().header("Cookie", cookie),
            None => self.browser(),
        };
        let answer = browser.guess(name, password).await;
        if !(300..400).contains(&answer.status) {
            return None;
        }
        let set = answer.headers.text("set-cookie").expect("a login sets a cookie");
        let (cookie, _) = set.split_once(';').expect("a cookie with attributes");
        Some(self.browser().header("Cookie", cookie))
    }

    /// Logs in a user of [`Accounts`], in a new browser.
    pub async fn login(&self, name: &str) -> ConsoleClient {
        let browser = self.login_with(None, name, &Accounts::password(name)).await;
        browser.unwrap_or_else(|| panic!("{name} can't log in"))
    }
}

impl Deref for ConsoleServer {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

impl DerefMut for ConsoleServer {
    fn deref_mut(&mut self) -> &mut Process {
        &mut self.process
    }
}

impl Accounts {
    /// Files in the cell's directory, without users and tokens yet.
    pub fn new(cell: &Cell) -> Self {
        let file = |name: &str| cell.directory().join(name);
        let accounts = Self { users: file("console-users"), tokens: file("console-tokens") };
        // A console answers 503 as long as one of its files is missing.
        for file in accounts.files() {
            // As the command creates them: it keeps the mode of a file that is there.
            let mut options = OpenOptions::new();
            let created = options.write(true).create(true).truncate(true).mode(0o600).open(file);
            created.expect("create an empty file");
        }
        accounts
    }

    /// Password of a user.
    pub fn password(name: &str) -> String {
        format!("{name}-is-a-long-password-of-the-tests")
    }

    /// Settings by which a console or `spillway console user` finds the files.
    pub fn settings(&self) -> [(&str, &str); 2] {
        [
            ("CONSOLE_USERS_FILE", self.users.to_str().expect("a plain path")),
            ("CONSOLE_TOKENS_FILE", self.tokens.to_str().expect("a plain path")),
        ]
    }

    /// The files themselves.
    pub fn files(&self) -> [&Path; 2] {
        [&self.users, &self.tokens]
    }

    /// Adds a user.
    pub async fn add_user(&self, name: &str, role: &str, sees_personal_data: bool) {
        self.add("user", name, role, sees_personal_data).await;
    }

    /// Adds an API token and returns it.
    pub async fn add_token(&self, name: &str, role: &str, sees_personal_data: bool) -> String {
        let output = self.add("token", name, role, sees_personal_data).await;
        let told = String::from_utf8(output.stdout).expect("text");
        let mut words = told.split_whitespace();
        // 256 bits have at least 43 letters, and no other word is that long.
        let token = words.find(|word| word.len() >= 43 && !word.contains('/')).map(str::to_owned);
        token.unwrap_or_else(|| panic!("no token in {told:?}"))
    }

    async fn add(&self, kind: &str, name: &str, role: &str, sees_personal_data: bool) -> Output {
        let mut command = Command::new(binaries::ours("spillway"));
        command.args(["console", kind, "add", name, "--role", role]);
        command.args(sees_personal_data.then_some("--personal"));
        command.env_clear().envs(self.settings()).stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let password = Self::password(name);
        let run = move || {
            let mut child = command.spawn().expect("run spillway");
            let mut input = child.stdin.take().expect("it is piped");
            // It may not want one.
            writeln!(input, "{password}").ok();
            drop(input);
            child.wait_with_output().expect("spillway ends")
        };
        let output = tokio::task::spawn_blocking(run).await.expect("spillway was run");
        assert!(output.status.success(), "{kind} {name}: {output:?}");
        output
    }
}

impl ConsoleClient {
    /// Replaces a header of every request from now on. An empty value removes it.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.retain(|(other, _)| !other.eq_ignore_ascii_case(name));
        if !value.is_empty() {
            self.headers.push((name.to_owned(), value.to_owned()));
        }
        self
    }

    /// Value of a header that it sends.
    pub fn sent(&self, name: &str) -> Option<&str> {
        let mut found = self.headers.iter().filter(|(other, _)| other.eq_ignore_ascii_case(name));
        found.next().map(|(_, value)| value.as_str())
    }

    /// Sends a request. `path` is sent as it is.
    pub async fn send(&self, method: &str, path: &str, media_type: &str, body: &[u8]) -> Answer {
        let answer = self.try_send(method, path, media_type, body).await;
        answer.unwrap_or_else(|| panic!("no answer to {method} {path}"))
    }

    async fn try_send(
        &self,
        method: &str,
        path: &str,
        media_type: &str,
        body: &[u8],
    ) -> Option<Answer> {
        let mut connection = Connection::open(self.address).await.ok()?;
        let mut request = self.head(method, path);
        if method != "GET" {
            let length = body.len();
            request += &format!("Content-Type: {media_type}\r\nContent-Length: {length}\r\n");
        }
        request += "Connection: close\r\n\r\n";
        let request = [request.as_bytes(), body].concat();
        let exchange = timeout(ANSWER_WITHIN, connection.exchange(&request)).await;
        let answer = exchange.unwrap_or_else(|_| panic!("{method} {path}: no answer in time"));
        answer.ok().map(whole)
    }

    fn head(&self, method: &str, path: &str) -> String {
        let mut head = format!("{method} {path} HTTP/1.1\r\n");
        if self.sent("Host").is_none() {
            head += &format!("Host: {}\r\n", self.address);
        }
        for (name, value) in &self.headers {
            head += &format!("{name}: {value}\r\n");
        }
        head
    }

    /// Gets a page or a resource.
    pub async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, "", b"").await
    }

    /// Same as [`get`](Self::get); `None` if nothing listens.
    pub async fn try_get(&self, path: &str) -> Option<Answer> {
        self.try_send("GET", path, "", b"").await
    }

    /// Gets a page or a resource that must be there, as text.
    pub async fn page(&self, path: &str) -> String {
        let answer = self.get(path).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        answer.text()
    }

    /// Gets a resource of the API that must be there.
    pub async fn json(&self, path: &str) -> Value {
        let text = self.page(path).await;
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}: {text}"))
    }

    /// All rows of a list of the API, read in pages of `limit`. `path` ends with `?` or `&`.
    pub async fn rows(&self, path: &str, rows: &str, limit: usize) -> Vec<Value> {
        let mut found = Vec::new();
        let mut after = String::new();
        for _ in 0..1_000 {
            let page = self.json(&format!("{path}limit={limit}{after}")).await;
            let own = page[rows].as_array().unwrap_or_else(|| panic!("no {rows} in {page}"));
            assert!(own.len() <= limit, "{} rows of {limit}", own.len());
            found.extend(own.iter().cloned());
            match page["next"].as_str() {
                Some(next) => after = format!("&after={}", percent(next)),
                None => return found,
            }
        }
        panic!("{path}: pages without end");
    }

    /// Time until the first byte of the answer.
    pub async fn first_byte(&self, path: &str) -> Duration {
        let mut stream = TcpStream::connect(self.address).await.expect("connect to the console");
        let request = self.head("GET", path) + "Connection: close\r\n\r\n";
        let began = Instant::now();
        stream.write_all(request.as_bytes()).await.expect("the console takes a request");
        let mut answer = vec![stream.read_u8().await.expect("the console answers")];
        let took = began.elapsed();
        stream.read_to_end(&mut answer).await.expect("the answer ends");
        let answer = String::from_utf8_lossy(&answer);
        assert!(!answer.starts_with("HTTP/1.1 5"), "{path}: {answer}");
        took
    }

    /// Status of the answer, for one that may never end.
    pub async fn status(&self, method: &str, path: &str, media_type: &str, body: &str) -> u16 {
        let mut stream = TcpStream::connect(self.address).await.expect("connect to the console");
        let mut request = self.head(method, path);
        if method != "GET" {
            let length = body.len();
            request += &format!("Content-Type: {media_type}\r\nContent-Length: {length}\r\n");
        }
        request += &format!("Connection: close\r\n\r\n{body}");
        stream.write_all(request.as_bytes()).await.expect("the console takes a request");
        let mut lines = BufReader::new(stream).lines();
        let line = timeout(ANSWER_WITHIN, lines.next_line()).await.expect("an answer in time");
        let line = line.expect("an answer").unwrap_or_default();
        let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
        status.unwrap_or_else(|| panic!("{method} {path}: no status in {line:?}"))
    }

    /// Data of the first event of a stream.
    pub async fn first_event(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(self.address).await.expect("connect to the console");
        let request = self.head("GET", path) + "Accept: text/event-stream\r\n\r\n";
        stream.write_all(request.as_bytes()).await.expect("the console takes a request");
        let mut lines = BufReader::new(stream).lines();
        let mut data = Vec::new();
        let reading = async {
            while let Some(line) = lines.next_line().await.expect("a stream of events") {
                match line.strip_prefix("data:") {
                    Some(part) => data.push(part.trim_start_matches(' ').to_owned()),
                    // An event ends with an empty line.
                    None if line.is_empty() && !data.is_empty() => break,
                    None => {}
                }
            }
        };
        timeout(ANSWER_WITHIN, reading).await.unwrap_or_else(|_| panic!("no event of {path}"));
        data.join("\n")
    }

    /// Watches a stream of events.
    pub async fn watch(&self, path: &str) -> Watcher {
        let mut stream = TcpStream::connect(self.address).await.expect("connect to the console");
        let request = self.head("GET", path) + "Accept: text/event-stream\r\n\r\n";
        stream.write_all(request.as_bytes()).await.expect("the console takes a request");
        let events = Arc::new(AtomicU64::new(0));
        let seen = Arc::clone(&events);
        let reading = tokio::spawn(async move {
            let mut lines = BufReader::new(stream).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                seen.fetch_add(u64::from(line.starts_with("event:")), Ordering::Relaxed);
            }
        });
        Watcher { reading, events }
    }

    /// Posts JSON to the API.
    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send("POST", path, "application/json", body.to_string().as_bytes()).await
    }

    /// Posts a form as it is.
    pub async fn submit_bare(&self, path: &str, fields: &[(&str, &str)]) -> Answer {
        let pairs: Vec<String> =
            fields.iter().map(|(name, value)| format!("{name}={}", percent(value))).collect();
        let form = "application/x-www-form-urlencoded";
        self.send("POST", path, form, pairs.join("&").as_bytes()).await
    }

    /// Posts a form with the token of the forms of `page`.
    pub async fn submit(&self, page: &str, path: &str, fields: &[(&str, &str)]) -> Answer {
        let token = self.csrf(page).await;
        self.submit_bare(path, &[fields, &[("csrf", &token)]].concat()).await
    }

    /// Token that the forms of a page carry.
    pub async fn csrf(&self, page: &str) -> String {
        let text = self.get(page).await.text();
        let found = csrf_in(&text);
        found.unwrap_or_else(|| panic!("no form with a token in {page}: {text}"))
    }

    /// Posts a login of this user with this password, as the form does.
    pub async fn guess(&self, name: &str, password: &str) -> Answer {
        // A page before the login may have a cookie or a token of its own.
        let page = self.get("/login").await;
        let browser = match page.headers.text("set-cookie").and_then(|set| set.split_once(';')) {
            Some((cookie, _)) => self.clone().header("Cookie", cookie),
            None => self.clone(),
        };
        let token = csrf_in(&page.text()).unwrap_or_default();
        let fields = [("user", name), ("password", password), ("csrf", &token)];
        browser.submit_bare("/login", &fields).await
    }

    /// Waits until a job is over, and returns its last state.
    pub async fn job_over(&self, id: u64) -> Value {
        until_some(&format!("job {id} is over"), JOB_WITHIN, async || {
            let job = self.json(&format!("/api/v1/jobs/{id}")).await;
            let phase = &job["phase"];
            let is_over = phase.get("failed").is_some()
                || ["counted", "undone", "cancelled", "done"].iter().any(|end| phase == end);
            is_over.then_some(job)
        })
        .await
    }
}

/// The answer with its body in one piece, if it came in chunks.
fn whole(mut answer: Answer) -> Answer {
    let is_chunked = answer.headers.text("transfer-encoding") == Some("chunked");
    if is_chunked {
        answer.body = joined(&answer.body).expect("chunks as they are described");
    }
    answer
}

fn joined(mut chunks: &[u8]) -> Option<Bytes> {
    let mut all = Vec::new();
    loop {
        let line = chunks.windows(2).position(|two| two == b"\r\n")?;
        let size = usize::from_str_radix(std::str::from_utf8(&chunks[..line]).ok()?, 16).ok()?;
        if size == 0 {
            return Some(all.into());
        }
        all.extend_from_slice(chunks.get(line + 2..line + 2 + size)?);
        chunks = chunks.get(line + size + 4..)?;
    }
}

/// Token of the first form of a page.
pub fn csrf_in(page: &str) -> Option<String> {
    let (before, after) = page.split_once("name=\"csrf\"")?;
    let tag = before.rfind('<').map(|place| &before[place..]).unwrap_or_default();
    let (rest, _) = after.split_once('>')?;
    let value = [rest, tag].into_iter().find_map(|part| part.split_once("value=\""));
    let (_, value) = value?;
    value.split_once('"').map(|(token, _)| token.to_owned())
}

/// Percent-encodes everything that could mean something else in a path or a query.
pub fn percent(text: &str) -> String {
    let letter = |byte: &u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
            char::from(*byte).to_string()
        }
        other => format!("%{other:02X}"),
    };
    text.as_bytes().iter().map(letter).collect()
}

/// Path of a file that `ops/deps.sh` puts beside our own binaries.
pub fn tool(name: &str) -> PathBuf {
    let profile = binaries::directory();
    let path = profile.parent().expect("a profile is a directory").join("tools").join(name);
    assert!(path.exists(), "{} is missing; get it with: ops/deps.sh test", path.display());
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_joined() {
        let all = joined(b"4\r\nabcd\r\na\r\n0123456789\r\n0\r\n\r\n").expect("whole chunks");
        assert_eq!(all, Bytes::from_static(b"abcd0123456789"));
        assert_eq!(joined(b"4\r\nab"), None);
    }

    #[test]
    fn the_token_of_a_form_is_found_on_both_sides_of_its_name() {
        let found = |page| csrf_in(page).unwrap_or_default();
        assert_eq!(found("<input type=\"hidden\" name=\"csrf\" value=\"one\">"), "one");
        assert_eq!(found("<input value=\"two\" name=\"csrf\"><input value=\"x\">"), "two");
        assert_eq!(csrf_in("<p>nothing</p>"), None);
    }

    #[test]
    fn letters_that_mean_something_are_encoded() {
        assert_eq!(percent("a b&c=/é\r\n"), "a%20b%26c%3D%2F%C3%A9%0D%0A");
    }
}
