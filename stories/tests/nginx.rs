//! `ops/nginx/spillway.conf` as shipped, except for addresses and certificate. Webhooks sent
//! through TLS arrive unchanged behind nginx, over reused connections.

use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStringExt;
use std::process::{Command, Stdio};

use stories::authority::Authority;
use stories::backend::Backend;
use stories::behaviour::Behaviour;
use stories::binaries::repository;
use stories::cell::Cell;
use stories::nginx::Nginx;
use stories::port;
use stories::receipt::hash;
use stories::webhook::Webhook;

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

/// An nginx with the shipped file, on its own port.
struct Front {
    address: SocketAddr,
    _nginx: Nginx,
}

impl Front {
    async fn start(cell: &Cell, receiver: SocketAddr) -> Self {
        let address = port::free();
        Authority::new(cell.directory(), "authority").certify("hooks.example.com");
        let shipped = fs::read_to_string(repository().join("ops/nginx/spillway.conf"))
            .expect("read the shipped file");
        let site = replace_each(
            shipped,
            &[
                ("server 127.0.0.1:8080 ", &format!("server {receiver} ")),
                ("listen 443 ssl;", &format!("listen {address} ssl;")),
                ("listen [::]:443 ssl;", ""),
                ("/etc/ssl/certs/hooks.example.com.pem", "hooks.example.com.pem"),
                ("/etc/ssl/private/hooks.example.com.key", "hooks.example.com.key"),
            ],
        );
        Self { address, _nginx: Nginx::start(cell.directory(), &site, address).await }
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
