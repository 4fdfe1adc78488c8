//! `ops/nginx/spillway.conf` as it is shipped, but for addresses and certificate: what goes in
//! through TLS comes out behind nginx unchanged, over connections that are reused.

use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use stories::backend::Backend;
use stories::behaviour::Behaviour;
use stories::binaries::repository;
use stories::cell::Cell;
use stories::client::Connection;
use stories::port;
use stories::process::{Process, Recipe};
use stories::receipt::hash;
use stories::until::until;
use stories::webhook::Webhook;

/// Set by nginx itself, or by the framing of the hop.
const NOT_COMPARED: [&str; 5] =
    ["host", "content-length", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_goes_through_nginx_comes_out_unchanged() {
    let cell = Cell::shared();
    let backend = Backend::start().await;
    let nginx = Nginx::start(&cell, backend.address()).await;
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
    let nginx = Nginx::start(&cell, backend.address()).await;
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
    let nginx = Nginx::start(&cell, backend.address()).await;
    assert_eq!(nginx.post(&Webhook::any().body(vec![b'{'; 16 << 20])).await, 200);
    assert_eq!(nginx.post(&Webhook::any().body(vec![b'{'; (16 << 20) + 1])).await, 413);
    assert_eq!(backend.count(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_is_not_tried_again() {
    let cell = Cell::shared();
    let backend = Backend::start().await;
    let nginx = Nginx::start(&cell, backend.address()).await;
    // Over a connection that was kept open, where nginx would think of another try at all.
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
    let nginx = Nginx::start(&cell, receiver.address()).await;
    assert_eq!(nginx.post(&Webhook::any()).await, 200);
    assert_eq!(nginx.post(&Webhook::any().signed_with("not the secret")).await, 401);
    assert_eq!(nginx.post(&Webhook::any().to("/a/../b")).await, 400);
    assert_eq!(nginx.post(&Webhook::any().method("PUT")).await, 405);
}

/// An nginx with the shipped file, on a port of its own.
struct Nginx {
    address: SocketAddr,
    _process: Process,
}

impl Nginx {
    async fn start(cell: &Cell, receiver: SocketAddr) -> Self {
        let directory = cell.directory().to_path_buf();
        let address = port::free();
        make_certificate(&directory);
        let shipped = fs::read_to_string(repository().join("ops/nginx/spillway.conf"))
            .expect("read the shipped file");
        let site = replace_each(
            shipped,
            &[
                ("server 127.0.0.1:8080 ", &format!("server {receiver} ")),
                ("listen 443 ssl;", &format!("listen {address} ssl;")),
                ("listen [::]:443 ssl;", ""),
                ("/etc/ssl/certs/hooks.example.com.pem", "certificate.pem"),
                ("/etc/ssl/private/hooks.example.com.key", "key.pem"),
            ],
        );
        fs::write(directory.join("spillway.conf"), site).expect("write the site");
        fs::write(directory.join("nginx.conf"), AROUND).expect("write nginx.conf");
        let arguments = ["-p", ".", "-c", "nginx.conf", "-e", "stderr"].map(OsString::from);
        let recipe = Recipe {
            name: "nginx".into(),
            program: nginx_program(),
            arguments: arguments.to_vec(),
            environment: Vec::new(),
            directory,
        };
        let process = recipe.start();
        let listens = async || Connection::open(address).await.is_ok();
        until("nginx listens", Duration::from_secs(10), listens).await;
        Self { address, _process: process }
    }

    /// Sends a webhook through TLS and returns the status.
    async fn post(&self, webhook: &Webhook) -> u16 {
        let (address, webhook) = (self.address, webhook.clone());
        tokio::task::spawn_blocking(move || curl(address, &webhook)).await.expect("curl was run")
    }
}

/// What belongs around the shipped file to run it as anybody, in one process, in one directory.
const AROUND: &str = "
daemon off;
master_process off;
pid nginx.pid;
error_log stderr warn;
events { worker_connections 512; }
http {
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    include spillway.conf;
}
";

/// curl sends the request target and the headers as it is told, in their order.
fn curl(address: SocketAddr, webhook: &Webhook) -> u16 {
    let head = webhook.head(0);
    let method = head.split(|byte| *byte == b' ').next().expect("a method");
    let method = String::from_utf8_lossy(method);
    let mut command = Command::new("curl");
    command.args(["-sS", "-k", "--http1.1", "-m", "20", "-o", "/dev/null", "-w", "%{http_code}"]);
    command.args(["-X", &method, "--request-target", webhook.target(), "--data-binary", "@-"]);
    // Of large bodies curl asks first whether they are welcome.
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
    // nginx may refuse before it has all: then curl stops reading, and its status tells.
    stdin.write_all(webhook.payload()).ok();
    drop(stdin);
    let output = child.wait_with_output().expect("reap curl");
    let status = String::from_utf8(output.stdout).expect("a status");
    status.parse().unwrap_or_else(|_| panic!("curl says {status:?}"))
}

fn compared(name: &str) -> bool {
    !NOT_COMPARED.iter().any(|other| name.eq_ignore_ascii_case(other))
}

/// Each is there exactly once: the shipped file and this test cannot drift apart unseen.
fn replace_each(mut text: String, replacements: &[(&str, &str)]) -> String {
    for (from, to) in replacements {
        assert_eq!(text.matches(from).count(), 1, "{from:?} in the shipped file");
        text = text.replace(from, to);
    }
    text
}

fn make_certificate(directory: &Path) {
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"])
        .args(["-subj", "/CN=hooks.example.com", "-keyout", "key.pem", "-out", "certificate.pem"])
        .current_dir(directory)
        .output()
        .expect("openssl is missing; install it with: apt-get install openssl");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

fn nginx_program() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain([PathBuf::from("/usr/sbin")])
        .map(|directory| directory.join("nginx"))
        .find(|candidate| candidate.is_file())
        .expect("nginx is missing; install it with: apt-get install nginx-light")
}

/// How many connections to this address there were lately: open ones, and those closed less than
/// a minute ago, which the kernel remembers on the side that closed.
fn connections_to(address: SocketAddr) -> usize {
    let remote = format!("0100007F:{:04X}", address.port());
    let table = fs::read_to_string("/proc/net/tcp").expect("read /proc/net/tcp");
    table.lines().filter(|line| line.split_whitespace().nth(2) == Some(remote.as_str())).count()
}
