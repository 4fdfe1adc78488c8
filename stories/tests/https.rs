//! HTTPS at the receiver itself: certificates by name, read again without a failed request, handshakes
//! that are bounded in number and time, and the same requests and time limits as without TLS.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, HandshakeKind, ProtocolVersion, RootCertStore,
    SupportedProtocolVersion,
};
use stories::authority::Authority;
use stories::cell::{Cell, Settings};
use stories::client::{Connection, post};
use stories::feed::{Feed, Trickle};
use stories::hostile::siege::crowd;
use stories::hostile::{play, shape};
use stories::ledger::{Ledger, Outcome};
use stories::port;
use stories::service::Service;
use stories::tunnel::Tunnel;
use stories::until::until;
use stories::webhook::Webhook;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

const WITHIN: Duration = Duration::from_secs(40);
const NAME: &str = "hooks.example";
const OTHER: &str = "other.example";
const STREAM: &str = "{spillway}:in";
/// Memory that handshakes may take, those of four shards.
const HANDSHAKE_BYTES_MAX: u64 = (4 * 33) << 20;
/// Another address than that of honest senders.
const STRANGERS: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, 2), 0));

/// 250 webhooks per second over 16 connections.
const LOAD: Trickle = Trickle {
    shops: 1..17,
    topics: &["products/update"],
    every: Duration::from_millis(64),
    first_resource: 1,
};

/// A cell whose receiver serves HTTPS with the files `served.pem` and `served.key` for one name, and
/// with those of [`OTHER`].
struct Scene {
    cell: Cell,
    authority: Authority,
    address: SocketAddr,
}

impl Scene {
    fn new(cell: Cell) -> Self {
        let authority = Authority::new(cell.directory(), "authority");
        [NAME, OTHER].iter().for_each(|name| authority.certify(name));
        authority.install(NAME, "served");
        Self { cell, authority, address: port::free() }
    }

    /// Certifies [`NAME`] again, and puts that into the place of the old certificate. Returns the new
    /// one.
    fn renew(&self) -> Vec<u8> {
        self.authority.certify(NAME);
        self.authority.install(NAME, "served");
        certificate(self.cell.directory(), NAME)
    }

    fn settings(&self) -> [(&'static str, String); 3] {
        let both = |ending| {
            let path = |name: &str| {
                self.cell.directory().join(format!("{name}.{ending}")).display().to_string()
            };
            format!("{}, {}", path("served"), path(OTHER))
        };
        [
            ("LISTEN_TLS", self.address.to_string()),
            ("TLS_CERT_FILE", both("pem")),
            ("TLS_KEY_FILE", both("key")),
        ]
    }

    async fn receiver(&self, more: Settings<'_>) -> Service {
        let own = self.settings();
        let own = own.iter().map(|(key, value)| (*key, value.as_str()));
        let settings: Vec<_> = own.chain(more.iter().copied()).collect();
        self.cell.receiver(&settings).await
    }

    fn client(&self, versions: &[&'static SupportedProtocolVersion]) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        let authority = CertificateDer::from_pem_file(self.authority.certificate());
        roots.add(authority.expect("read the authority")).expect("a certificate to trust");
        let builder = ClientConfig::builder_with_protocol_versions(versions);
        builder.with_root_certificates(roots).with_no_client_auth()
    }

    /// Shakes hands as a client that sends this name.
    async fn connect(&self, name: &str) -> TlsStream<TcpStream> {
        let connector = TlsConnector::from(Arc::new(self.client(rustls::ALL_VERSIONS)));
        let stream = TcpStream::connect(self.address).await.expect("connect");
        connector.connect(server_name(name), stream).await.expect("shake hands")
    }

    /// First certificate that a client gets which sends this name.
    async fn shown(&self, name: &str) -> Vec<u8> {
        let stream = self.connect(name).await;
        let certificates = stream.get_ref().1.peer_certificates().expect("certificates");
        certificates[0].to_vec()
    }

    /// First message of a handshake.
    fn hello(&self) -> Vec<u8> {
        let config = Arc::new(self.client(rustls::ALL_VERSIONS));
        let mut client = ClientConnection::new(config, server_name(NAME)).expect("a client");
        let mut hello = Vec::new();
        client.write_tls(&mut hello).expect("write to memory");
        hello
    }
}

fn server_name(name: &str) -> ServerName<'static> {
    ServerName::try_from(name.to_owned()).expect("a name")
}

fn certificate(directory: &Path, name: &str) -> Vec<u8> {
    let path = directory.join(format!("{name}.pem"));
    CertificateDer::from_pem_file(path).expect("read a certificate").to_vec()
}

async fn handshakes(receiver: &Service, outcome: &str) -> usize {
    let metric = format!("spillway_tls_handshakes_total{{outcome=\"{outcome}\"}}");
    receiver.metric(&metric).await.expect("it is counted") as usize
}

#[tokio::test]
async fn certificates_are_chosen_by_name_and_a_change_is_noticed_without_a_signal() {
    let scene = Scene::new(Cell::shared());
    let directory = scene.cell.directory();
    let redis = scene.cell.redis(&[]).await;
    let mut receiver = scene.receiver(&[]).await;
    assert_eq!(scene.shown(NAME).await, certificate(directory, NAME));
    assert_eq!(scene.shown(OTHER).await, certificate(directory, OTHER));
    // Plain HTTP is served as before.
    post(receiver.address(), &Webhook::any()).await.expect_stored();
    let tunnel = Tunnel::to(scene.address, NAME, &scene.authority).await;
    let mut lasting = Connection::to(tunnel.address()).await;
    lasting.post(&Webhook::any()).await.expect_stored();
    let renewed = scene.renew();
    until("the new certificate is in force", WITHIN, async || scene.shown(NAME).await == renewed)
        .await;
    lasting.post(&Webhook::any()).await.expect_stored();

    // A mistake in the files changes nothing, and is reported until it is gone.
    fs::write(directory.join("served.key"), "nonsense").expect("write");
    receiver.sighup();
    until("the mistake is reported", WITHIN, async || {
        receiver.output().contains("served.key holds no PEM of a private key")
            && receiver.metric("spillway_reload_failed").await == Some(1.0)
    })
    .await;
    lasting.post(&Webhook::any()).await.expect_stored();
    assert_eq!(scene.shown(NAME).await, renewed);
    scene.authority.certify_for(NAME, -1);
    scene.authority.install(NAME, "served");
    receiver.sighup();
    until("what has expired is in force, and reported", WITHIN, async || {
        receiver.output().contains("a certificate has expired")
            && receiver.metric("spillway_reload_failed").await == Some(0.0)
    })
    .await;
    let expires = receiver.metric("spillway_certificate_expiry_timestamp_seconds").await;
    let now = std::time::UNIX_EPOCH.elapsed().expect("a clock that is right");
    assert!(expires.is_some_and(|at| at < now.as_secs_f64()), "{expires:?}");
    assert_eq!(redis.stream_len(STREAM).await, 4);
    receiver.sigterm();
    assert_eq!(receiver.exit(WITHIN).await.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_renewals_under_load_fail_no_request() {
    let scene = Scene::new(Cell::busy());
    let redis = scene.cell.redis(&[]).await;
    let mut receiver = scene.receiver(&[]).await;
    let tunnel = Tunnel::to(scene.address, NAME, &scene.authority).await;
    let ledger = Arc::new(Ledger::default());
    let traffic = Feed::to(tunnel.address(), &ledger).trickle(&LOAD);
    for _ in 0..200 {
        let renewed = scene.renew();
        receiver.sighup();
        until("the new certificate is in force", WITHIN, async || {
            // On a new connection, too, each webhook is stored.
            post(tunnel.address(), &Webhook::any()).await.expect_stored();
            scene.shown(NAME).await == renewed
        })
        .await;
    }
    traffic.stop().await;
    let attempts = ledger.attempts();
    let bad = attempts.iter().filter(|attempt| attempt.outcome != Outcome::Stored).count();
    assert!(attempts.len() > 500, "{} webhooks", attempts.len());
    assert_eq!(bad, 0, "of {}", attempts.len());
    assert!(redis.stream_len(STREAM).await > 0);
    assert_eq!(handshakes(&receiver, "failed").await, 0);
    assert_eq!(handshakes(&receiver, "cut_off").await, 0);
    receiver.sigterm();
    assert_eq!(receiver.exit(WITHIN).await.code(), Some(0));
}

#[tokio::test]
async fn both_versions_are_spoken_and_sessions_are_resumed_at_any_shard_and_after_a_reload() {
    let scene = Scene::new(Cell::shared());
    let _redis = scene.cell.redis(&[]).await;
    let receiver = scene.receiver(&[]).await;
    for (version, expected) in [
        (&rustls::version::TLS12, ProtocolVersion::TLSv1_2),
        (&rustls::version::TLS13, ProtocolVersion::TLSv1_3),
    ] {
        let mut config = scene.client(&[version]);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let client = TlsConnector::from(Arc::new(config));
        // Each connection goes to the next shard.
        for kind in [HandshakeKind::Full, HandshakeKind::Resumed, HandshakeKind::Resumed] {
            let stream = TcpStream::connect(scene.address).await.expect("connect");
            let mut stream = client.connect(server_name(NAME), stream).await.expect("shake hands");
            stream.write_all(&Webhook::any().encode()).await.expect("write");
            let mut answer = [0; 12];
            stream.read_exact(&mut answer).await.expect("read");
            assert_eq!(&answer, b"HTTP/1.1 200");
            let session = stream.get_ref().1;
            assert_eq!(session.protocol_version(), Some(expected));
            assert_eq!(session.alpn_protocol(), Some(&b"http/1.1"[..]));
            assert_eq!(session.handshake_kind(), Some(kind), "{expected:?}");
            let renewed = scene.renew();
            receiver.sighup();
            until("it is in force", WITHIN, async || scene.shown(NAME).await == renewed).await;
        }
    }
    let mut only_http_2 = scene.client(rustls::ALL_VERSIONS);
    only_http_2.alpn_protocols = vec![b"h2".to_vec()];
    let stream = TcpStream::connect(scene.address).await.expect("connect");
    let client = TlsConnector::from(Arc::new(only_http_2));
    assert!(client.connect(server_name(NAME), stream).await.is_err(), "it speaks no HTTP/2");
}

#[tokio::test]
async fn handshakes_that_are_slow_or_aborted_or_never_end_keep_nobody_out() {
    let scene = Scene::new(Cell::busy());
    let _redis = scene.cell.redis(&[]).await;
    let receiver = scene.receiver(&[("HEADER_TIMEOUT", "8s")]).await;
    let tunnel = Tunnel::to(scene.address, NAME, &scene.authority).await;
    post(tunnel.address(), &Webhook::any()).await.expect_stored();
    let before = receiver.resident_bytes();
    let hello = scene.hello();
    // Begun before all others, and ended after them.
    let mut slow = TcpStream::connect(scene.address).await.expect("connect");
    slow.write_all(&hello[..hello.len() / 2]).await.expect("write");
    // More than two shards take at once, from another address.
    let count = crowd(1_500);
    let mut strangers = JoinSet::new();
    for place in 0..count {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind(STRANGERS).expect("bind");
        let stream = socket.connect(scene.address).await.expect("connect");
        strangers.spawn(begin_handshake(stream, hello.clone(), place.is_multiple_of(2)));
    }
    until("some are cut off", WITHIN, async || handshakes(&receiver, "cut_off").await > 0).await;
    slow.write_all(&hello[hello.len() / 2..]).await.expect("write");
    let answered = slow.read(&mut [0; 1]).await;
    assert!(matches!(answered, Ok(1)), "strangers have cut it off: {answered:?}");
    drop(slow);
    for _ in 0..20 {
        post(tunnel.address(), &Webhook::any()).await.expect_stored();
    }
    let grown = receiver.resident_bytes().saturating_sub(before);
    assert!(grown < HANDSHAKE_BYTES_MAX, "{grown} bytes");
    let ended = timeout(WITHIN, strangers.join_all()).await.expect("all are cut off");
    assert!(ended.into_iter().all(|is_unanswered| is_unanswered), "half a handshake is answered");
    until("they are counted", WITHIN, async || handshakes(&receiver, "cut_off").await == count)
        .await;

    // Some go away in the middle of it, and one speaks no TLS.
    for _ in 0..20 {
        let mut stream = TcpStream::connect(scene.address).await.expect("connect");
        stream.write_all(&hello).await.expect("write");
    }
    assert_eq!(play(scene.address, &Webhook::any().encode(), 1).await, [0; 0]);
    until("they are counted", WITHIN, async || handshakes(&receiver, "failed").await == 22).await;
    post(tunnel.address(), &Webhook::any()).await.expect_stored();
    let log = receiver.output();
    assert!(!log.contains("panicked"), "something panicked");
    assert!(
        !log.contains("rustls") && !log.contains("handshake"),
        "strangers fill the log:\n{log}"
    );
}

/// Writes half of the first message, or all of it byte by byte, until the server closes. Returns true if
/// it answers nothing.
async fn begin_handshake(stream: TcpStream, hello: Vec<u8>, is_slow: bool) -> bool {
    let (mut incoming, mut outgoing) = stream.into_split();
    let pieces =
        if is_slow { hello.chunks(1) } else { hello[..hello.len() / 2].chunks(hello.len()) };
    let writing = async {
        for piece in pieces {
            outgoing.write_all(piece).await.ok();
            sleep(Duration::from_millis(250)).await;
        }
        std::future::pending::<()>().await;
    };
    let mut answer = Vec::new();
    tokio::select! {
        () = writing => {}
        // Closed or reset.
        _ = incoming.read_to_end(&mut answer) => {}
    }
    answer.is_empty()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_read_over_tls_as_without() {
    let scene = Scene::new(Cell::shared());
    let _redis = scene.cell.redis(&[]).await;
    let short = ["IDLE_TIMEOUT", "HEADER_TIMEOUT", "BODY_TIMEOUT"].map(|key| (key, "1s"));
    let small = [("MAX_BODY", "1MiB"), ("MAX_IN_FLIGHT", "64MiB")];
    let receiver = scene.receiver(&[&short[..], &small].concat()).await;
    let tunnel = Tunnel::to(scene.address, NAME, &scene.authority).await;
    let mut tasks = JoinSet::new();
    for shape in [shape::all(), vec![shape::pipelined()]].concat() {
        let address = tunnel.address();
        tasks.spawn(async move { (play(address, &shape.bytes, usize::MAX).await, shape) });
    }
    let mut wrong = Vec::new();
    for (heard, shape) in tasks.join_all().await {
        if heard != shape.expected {
            wrong.push(format!("{}: {heard:?} instead of {:?}", shape.name, shape.expected));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");

    // A client that sends nothing is disconnected, and one that is slow is answered before; each with
    // the end of TLS, without which a client would take it for an attack.
    let mut silent = scene.connect(NAME).await;
    let mut answer = Vec::new();
    let read = timeout(WITHIN, silent.read_to_end(&mut answer)).await.expect("it is closed");
    assert_eq!(read.expect("an end of TLS"), 0);
    let mut slow = scene.connect(NAME).await;
    slow.write_all(b"POST / HTTP/1.1\r\n").await.expect("write");
    let read = timeout(WITHIN, slow.read_to_end(&mut answer)).await.expect("it is closed");
    read.expect("an end of TLS");
    assert!(answer.starts_with(b"HTTP/1.1 408 "), "{}", String::from_utf8_lossy(&answer));
    let mut idle = scene.connect(NAME).await;
    idle.write_all(&Webhook::any().encode()).await.expect("write");
    answer.clear();
    let read = timeout(WITHIN, idle.read_to_end(&mut answer)).await.expect("it is closed");
    read.expect("an end of TLS");
    assert!(answer.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&answer));
    assert!(!receiver.output().contains("panicked"), "something panicked");
}

#[tokio::test]
async fn a_shutdown_ends_idle_connections_and_waits_for_no_handshake() {
    let scene = Scene::new(Cell::shared());
    let _redis = scene.cell.redis(&[]).await;
    let mut receiver = scene.receiver(&[("SHUTDOWN_TIMEOUT", "60s")]).await;
    let mut idle = scene.connect(NAME).await;
    idle.write_all(&Webhook::any().encode()).await.expect("write");
    let mut begin = [0; 12];
    idle.read_exact(&mut begin).await.expect("an answer");
    let stream = TcpStream::connect(scene.address).await.expect("connect");
    let half = tokio::spawn(begin_handshake(stream, scene.hello(), false));
    receiver.sigterm();
    // Less than its time to stop.
    assert_eq!(receiver.exit(WITHIN).await.code(), Some(0));
    assert!(half.await.expect("it does not panic"));
    let mut rest = Vec::new();
    idle.read_to_end(&mut rest).await.expect("an end of TLS");
}

#[tokio::test]
async fn sslscan_finds_nothing_weak() {
    const GOOD: [&str; 6] = [
        "TLS_AES_128_GCM_SHA256",
        "TLS_AES_256_GCM_SHA384",
        "TLS_CHACHA20_POLY1305_SHA256",
        "ECDHE-ECDSA-AES128-GCM-SHA256",
        "ECDHE-ECDSA-AES256-GCM-SHA384",
        "ECDHE-ECDSA-CHACHA20-POLY1305",
    ];
    let scene = Scene::new(Cell::shared());
    let _redis = scene.cell.redis(&[]).await;
    let receiver = scene.receiver(&[]).await;
    let mut scan = Command::new("sslscan");
    scan.args(["--xml=-", &format!("--sni-name={NAME}"), &scene.address.to_string()]);
    let output = timeout(WITHIN, scan.kill_on_drop(true).output()).await.expect("it ends");
    let output = output.expect("sslscan is missing; install it with: apt-get install sslscan");
    let page = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines = || page.lines().map(str::trim);
    for (version, is_enabled) in [("1.0", false), ("1.1", false), ("1.2", true), ("1.3", true)] {
        let line = format!(
            "<protocol type=\"tls\" version=\"{version}\" enabled=\"{}\"",
            u8::from(is_enabled)
        );
        assert!(lines().any(|found| found.starts_with(&line)), "{line}\n{page}");
    }
    for line in lines() {
        let is_bad = [
            ("<protocol type=\"ssl\"", "enabled=\"1\""),
            ("<compression", "supported=\"1\""),
            ("<renegotiation supported=\"1\"", "secure=\"0\""),
            ("<heartbleed", "vulnerable=\"1\""),
        ];
        let is_bad =
            is_bad.iter().any(|(begins, holds)| line.starts_with(begins) && line.contains(holds));
        assert!(!is_bad, "{line}");
    }
    let named = |line: &str| {
        let (_, rest) = line.split_once(" cipher=\"")?;
        rest.split_once('"').map(|(name, _)| name.to_owned())
    };
    let ciphers: Vec<String> =
        lines().filter(|line| line.starts_with("<cipher ")).filter_map(named).collect();
    for cipher in &ciphers {
        assert!(GOOD.contains(&cipher.as_str()), "{cipher}\n{page}");
    }
    for cipher in GOOD {
        assert!(ciphers.iter().any(|found| found == cipher), "{cipher} is not offered\n{page}");
    }
    assert!(!receiver.output().contains("panicked"), "something panicked");
}

#[tokio::test]
async fn settings_that_do_not_fit_are_reported_by_the_check() {
    let scene = Scene::new(Cell::shared());
    let directory = scene.cell.directory().display().to_string();
    let [served, of_other] =
        ["served.pem", "other.example.key"].map(|file| format!("{directory}/{file}"));
    let listen = ("LISTEN_TLS", "127.0.0.1:1");
    let certificate = ("TLS_CERT_FILE", served.as_str());
    let cases: [(Settings<'_>, &str); 6] = [
        (&[certificate], "LISTEN_TLS: is needed"),
        (&[listen], "LISTEN_TLS: needs TLS_CERT_FILE and TLS_KEY_FILE"),
        (&[listen, certificate], "names 1 and TLS_KEY_FILE 0: both must name as many files"),
        (&[("LISTEN_TLS", "here"), certificate, ("TLS_KEY_FILE", &of_other)], "is not an address"),
        (
            &[listen, certificate, ("TLS_KEY_FILE", &of_other)],
            "other.example.key is not the key of",
        ),
        (&[listen, certificate, ("TLS_KEY_FILE", "/no")], "cannot read /no"),
    ];
    for (settings, reported) in cases {
        let ended = scene.cell.run("request-receiver", &["--check"], settings).await;
        let text = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(78), "{text}");
        assert!(text.contains(reported), "{text}");
    }
}
