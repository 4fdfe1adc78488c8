//! `ops/nginx/spillway.conf` as shipped, except for addresses and certificate. Webhooks sent
//! through TLS arrive unchanged behind nginx, over reused connections. `ops/nginx/console.conf` leads people to the
//! console.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::os::unix::ffi::OsStringExt;
use std::process::{Command, Stdio};

use stories::authority::Authority;
use stories::backend::Backend;
use stories::behaviour::Behaviour;
use stories::binaries::repository;
use stories::cell::Cell;
use stories::console::{Accounts, ConsoleServer};
use stories::nginx::Nginx;
use stories::port;
use stories::receipt::hash;
use stories::webhook::Webhook;

/// Host of the console in the shipped file.
const CONSOLE: &str = "console.example.com";

/// Headers that nginx sets, or that belong to the framing of the hop.
const NOT_COMPARED: [&str; 5] =
    ["host", "content-length", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_goes_through_nginx_comes_out_unchanged() {
    let cell = Cell::shared();
    let backend = Backend::start().await;
    let nginx = Front::start(&cell, backend.address()).await;
    let body = |bytes: usize| [b"{".to_vec(), (0..bytes).map(|i| (i * 7) as u8).collect()].concat();
    let targets =
        ["/", "/webhooks//products", "/a%2Fb/%C3%A9/%2e", "/a?", "/a?b=%20c&d=//e", "/a/../b"];
    for (number, target) in targets.into_iter().enumerate() {
        let webhook = Webhook::product(1, &number.to_string(), body(20 << (3 * number)))
            .header("X_Under_Score", "kept")
            .header("x-repeated", "1")
            .header("X-Repeated", "2")
            .header("X-Latin-1", b"caf\xe9")
            .header("X-Forwarded-For", "192.0.2.1")
            .to(target);
        assert_eq!(nginx.post(&webhook).await, 200, "{target}");
        let receipt = backend.look(|receipts| receipts.last().expect("a receipt").clone());
        assert_eq!(receipt.method, "POST");
        assert_eq!(receipt.target, target);
        assert_eq!(receipt.body_hash, hash(webhook.payload()), "{target}");
        let got = receipt.headers.0.iter().filter(|(name, _)| compared(name));
        let sent = webhook.headers().iter().filter(|(name, _)| compared(name));
        assert_eq!(got.collect::<Vec<_>>(), sent.collect::<Vec<_>>(), "{target}");
        assert_eq!(receipt.header("Host"), "hooks.example.com");
        assert_eq!(receipt.headers.all("X-Forwarded-For"), [b"127.0.0.1"]);
        assert_eq!(receipt.header("X-Forwarded-Host"), "hooks.example.com");
        assert_eq!(receipt.header("X-Forwarded-Proto"), "https");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_to_the_receiver_are_reused() {
    let cell = Cell::shared();
    let backend = Backend::start().await;
    let nginx = Front::start(&cell, backend.address()).await;
    for _ in 0..20 {
        assert_eq!(nginx.post(&Webhook::any()).await, 200);
    }
    assert_eq!(backend.count(), 20);
    assert_eq!(connections_to(backend.address()), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_of_16_mib_passes_and_a_longer_one_is_refused() {
    let cell = Cell::shared();
    let backend = Backend::start().await;
    let nginx = Front::start(&cell, backend.address()).await;
    assert_eq!(nginx.post(&Webhook::any().body(vec![b'{'; 16 << 20])).await, 200);
    assert_eq!(nginx.post(&Webhook::any().body(vec![b'{'; (16 << 20) + 1])).await, 413);
    assert_eq!(backend.count(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_is_not_tried_again() {
    let cell = Cell::shared();
    let backend = Backend::start().await;
    let nginx = Front::start(&cell, backend.address()).await;
    // On a kept-alive connection, because nginx retries only there.
    assert_eq!(nginx.post(&Webhook::any()).await, 200);
    backend.behave(|_| Behaviour::Reset);
    assert_eq!(nginx.post(&Webhook::any()).await, 502);
    assert_eq!(backend.count(), 2);
    backend.behave(|_| Behaviour::ok());
    assert_eq!(nginx.post(&Webhook::any()).await, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_receiver_behind_nginx_answers_as_it_does_alone() {
    let cell = Cell::shared();
    let _redis = cell.redis(&[]).await;
    let receiver = cell.receiver(&[]).await;
    let nginx = Front::start(&cell, receiver.address()).await;
    assert_eq!(nginx.post(&Webhook::any()).await, 200);
    assert_eq!(nginx.post(&Webhook::any().signed_with("not the secret")).await, 401);
    assert_eq!(nginx.post(&Webhook::any().to("/a/../b")).await, 400);
    assert_eq!(nginx.post(&Webhook::any().method("PUT")).await, 405);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn people_reach_the_console_through_its_site() {
    let cell = Cell::shared();
    let _redis = cell.redis(&[]).await;
    let accounts = Accounts::new(&cell);
    accounts.add_user("sue", "viewer", false).await;
    let own = [("CONSOLE_HOSTS", CONSOLE), ("TRUSTED_PROXIES", "127.0.0.1")];
    let all = [&accounts.settings()[..], &own].concat();
    let console = ConsoleServer::start(&cell, &all).await;
    let nginx = Front::of_console(&cell, console.address()).await;

    let ours = format!("Host: {CONSOLE}");
    let login = nginx.ask("/login", &["-H", &ours], "</html>").await;
    assert!(login.contains("HTTP/1.1 200"), "{login}");
    let other = nginx.ask("/login", &["-H", "Host: other.example"], "").await;
    assert!(other.contains("HTTP/1.1 403"), "{other}");

    let fields = format!("user=sue&password={}", Accounts::password("sue"));
    let origin = format!("Origin: https://{CONSOLE}");
    let form: [&str; 6] = ["-H", &ours, "-H", &origin, "-d", &fields];
    let answer = nginx.ask("/login", &form, "").await;
    assert!(answer.contains("HTTP/1.1 30"), "{answer}");
    let cookie = answer.lines().find_map(|line| line.split_once(": ").filter(is_cookie));
    let cookie = cookie.and_then(|(_, set)| set.split(';').next()).expect("a session");
    let session = format!("Cookie: {cookie}");
    // The stream does not end, and its first event comes all the same.
    let live = nginx.ask("/events/overview", &["-H", &ours, "-H", &session], "event: part").await;
    assert!(live.contains("HTTP/1.1 200") && live.contains("event: part"), "{live}");
    assert!(!console.output().contains("TRUSTED_PROXIES"), "{}", console.output());
}

fn is_cookie((name, _): &(&str, &str)) -> bool {
    name.eq_ignore_ascii_case("set-cookie")
}

/// An nginx with a shipped file, on its own port.
struct Front {
    address: SocketAddr,
    _nginx: Nginx,
}

impl Front {
    async fn start(cell: &Cell, receiver: SocketAddr) -> Self {
        let server = format!("server {receiver} ");
        Self::with(cell, "spillway.conf", "hooks.example.com", ("server 127.0.0.1:8080 ", &server))
            .await
    }

    async fn of_console(cell: &Cell, console: SocketAddr) -> Self {
        let pass = format!("proxy_pass http://{console};");
        Self::with(cell, "console.conf", CONSOLE, ("proxy_pass http://127.0.0.1:9820;", &pass))
            .await
    }

    /// Starts nginx with this file, a certificate of `host` and another address of the server behind it.
    async fn with(cell: &Cell, file: &str, host: &str, server: (&str, &str)) -> Self {
        let address = port::free();
        Authority::new(cell.directory(), "authority").certify(host);
        let shipped = fs::read_to_string(repository().join("ops/nginx").join(file))
            .expect("read the shipped file");
        let site = replace_each(
            shipped,
            &[
                server,
                ("listen 443 ssl;", &format!("listen {address} ssl;")),
                ("listen [::]:443 ssl;", ""),
                (&format!("/etc/ssl/certs/{host}.pem"), &format!("{host}.pem")),
                (&format!("/etc/ssl/private/{host}.key"), &format!("{host}.key")),
            ],
        );
        Self { address, _nginx: Nginx::start(cell.directory(), &site, address).await }
    }

    /// Asks for a page, and returns its head and body up to the line that contains `end`, or all of it.
    async fn ask(&self, path: &str, arguments: &[&str], end: &str) -> String {
        let mut command = Command::new("curl");
        command.args(["-sS", "-k", "-i", "-N", "--http1.1", "-m", "20"]).args(arguments);
        command.arg(format!("https://{}{path}", self.address)).stdout(Stdio::piped());
        let end = end.to_owned();
        let run = move || {
            let mut child =
                command.spawn().expect("curl is missing; install it with: apt-get install curl");
            let mut told = String::new();
            for line in BufReader::new(child.stdout.take().expect("a pipe from curl")).lines() {
                let line = line.expect("text of curl");
                told.push_str(&line);
                told.push('\n');
                if !end.is_empty() && line.contains(&end) {
                    break;
                }
            }
            // It may have ended by itself.
            child.kill().ok();
            child.wait().expect("reap curl");
            told
        };
        tokio::task::spawn_blocking(run).await.expect("curl was run")
    }

    /// Sends a webhook through TLS and returns the status.
    async fn post(&self, webhook: &Webhook) -> u16 {
        let (address, webhook) = (self.address, webhook.clone());
        tokio::task::spawn_blocking(move || curl(address, &webhook)).await.expect("curl was run")
    }
}

/// Runs curl, which sends the request target and the headers unchanged and in order.
fn curl(address: SocketAddr, webhook: &Webhook) -> u16 {
    let head = webhook.head(0);
    let method = head.split(|byte| *byte == b' ').next().expect("a method");
    let method = String::from_utf8_lossy(method);
    let mut command = Command::new("curl");
    command.args(["-sS", "-k", "--http1.1", "-m", "20", "-o", "/dev/null", "-w", "%{http_code}"]);
    command.args(["-X", &method, "--request-target", webhook.target(), "--data-binary", "@-"]);
    // Disables `Expect: 100-continue`, which curl uses for large bodies.
    command.args(["-H", "Host: hooks.example.com", "-H", "Expect:"]);
    for (name, value) in webhook.headers() {
        let line = [name.as_bytes(), b": ", value].concat();
        command.arg("-H").arg(OsString::from_vec(line));
    }
    command.arg(format!("https://{address}/"));
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("curl is missing; install it with: apt-get install curl");
    let mut stdin = child.stdin.take().expect("a pipe to curl");
    // nginx may answer before it has read everything. curl then stops reading, and its status is
    // checked.
    stdin.write_all(webhook.payload()).ok();
    drop(stdin);
    let output = child.wait_with_output().expect("reap curl");
    let status = String::from_utf8(output.stdout).expect("a status");
    status.parse().unwrap_or_else(|_| panic!("curl says {status:?}"))
}

fn compared(name: &str) -> bool {
    !NOT_COMPARED.iter().any(|other| name.eq_ignore_ascii_case(other))
}

/// Each text must occur exactly once, so that the shipped file and this test stay consistent.
fn replace_each(mut text: String, replacements: &[(&str, &str)]) -> String {
    for (from, to) in replacements {
        assert_eq!(text.matches(from).count(), 1, "{from:?} in the shipped file");
        text = text.replace(from, to);
    }
    text
}

/// Number of recent connections to this address: open ones, and those closed less than a minute
/// ago, which the kernel remembers on the side that closed.
fn connections_to(address: SocketAddr) -> usize {
    let remote = format!("0100007F:{:04X}", address.port());
    let table = fs::read_to_string("/proc/net/tcp").expect("read /proc/net/tcp");
    table.lines().filter(|line| line.split_whitespace().nth(2) == Some(remote.as_str())).count()
}
