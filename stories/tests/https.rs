//! HTTPS at the receiver itself: certificates by name, read again without a lost connection, and
//! handshakes that are bounded in number and time.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, HandshakeKind, ProtocolVersion, RootCertStore, SupportedProtocolVersion};
use stories::authority::Authority;
use stories::cell::Cell;
use stories::client::{Connection, post};
use stories::port;
use stories::service::Service;
use stories::tunnel::Tunnel;
use stories::until::until;
use stories::webhook::Webhook;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

const WITHIN: Duration = Duration::from_secs(40);
const NAME: &str = "hooks.example";
const OTHER: &str = "other.example";

/// A cell whose receiver serves HTTPS with the files `cert.pem` and `key.pem` for one name, and those
/// of [`OTHER`].
struct Scene {
    cell: Cell,
    authority: Authority,
    address: SocketAddr,
}

impl Scene {
    fn new() -> Self {
        let cell = Cell::shared();
        let authority = Authority::new(cell.directory(), "authority");
        [NAME, OTHER].iter().for_each(|name| authority.certify(name));
        let scene = Self { cell, authority, address: port::free() };
        scene.install(NAME);
        scene
    }

    /// Replaces the certificate for [`NAME`] and its key, each by a rename.
    fn install(&self, from: &str) {
        let directory = self.cell.directory();
        for ending in ["pem", "key"] {
            let new = directory.join("new");
            fs::copy(directory.join(format!("{from}.{ending}")), &new).expect("copy");
            fs::rename(new, directory.join(format!("served.{ending}"))).expect("rename");
        }
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

    async fn receiver(&self, more: &[(&str, &str)]) -> Service {
        let own = self.settings();
        let own = own.iter().map(|(key, value)| (*key, value.as_str()));
        let settings: Vec<_> = own.chain(more.iter().copied()).collect();
        self.cell.receiver(&settings).await
    }

    fn client(&self, versions: &[&'static SupportedProtocolVersion]) -> TlsConnector {
        let mut roots = RootCertStore::empty();
        let authority = CertificateDer::from_pem_file(self.authority.certificate());
        roots.add(authority.expect("read the authority")).expect("a certificate to trust");
        let builder = ClientConfig::builder_with_protocol_versions(versions);
        let config = builder.with_root_certificates(roots).with_no_client_auth();
        TlsConnector::from(Arc::new(config))
    }

    /// First certificate that a client gets which sends this name.
    async fn shown(&self, name: &str) -> Vec<u8> {
        let client = self.client(rustls::ALL_VERSIONS);
        let stream = TcpStream::connect(self.address).await.expect("connect");
        let name = ServerName::try_from(name.to_owned()).expect("a name");
        let stream = client.connect(name, stream).await.expect("shake hands");
        let certificates = stream.get_ref().1.peer_certificates().expect("certificates");
        certificates[0].to_vec()
    }
}

fn certificate(directory: &Path, name: &str) -> Vec<u8> {
    let path = directory.join(format!("{name}.pem"));
    CertificateDer::from_pem_file(path).expect("read a certificate").to_vec()
}

#[tokio::test]
async fn certificates_are_chosen_by_name_and_replaced_without_a_lost_connection() {
    let scene = Scene::new();
    let directory = scene.cell.directory();
    let redis = scene.cell.redis(&[]).await;
    let mut receiver = scene.receiver(&[]).await;
    assert_eq!(scene.shown(NAME).await, certificate(directory, NAME));
    assert_eq!(scene.shown(OTHER).await, certificate(directory, OTHER));
    // Plain HTTP is served as before.
    post(receiver.address(), &Webhook::any()).await.expect_stored();

    let tunnel = Tunnel::to(scene.address, NAME, &scene.authority).await;
    let mut lasting = Connection::to(tunnel.address()).await;
    let mut stored = 1;
    for round in 0..10 {
        let before = certificate(directory, "served");
        scene.authority.certify(NAME);
        scene.install(NAME);
        let renewed = certificate(directory, NAME);
        assert_ne!(renewed, before);
        // Without a signal the change is noticed, too.
        if round > 0 {
            receiver.sighup();
        }
        until("the new certificate is in force", WITHIN, async || {
            lasting.post(&Webhook::any()).await.expect_stored();
            stored += 1;
            scene.shown(NAME).await == renewed
        })
        .await;
    }
    assert_eq!(redis.stream_len("{spillway}:in").await, stored);

    // A mistake in the files changes nothing.
    fs::write(directory.join("served.key"), "nonsense").expect("write");
    receiver.sighup();
    until("the mistake is told", WITHIN, async || {
        receiver.output().contains("served.key holds no PEM of a private key")
    })
    .await;
    lasting.post(&Webhook::any()).await.expect_stored();
    assert_eq!(scene.shown(NAME).await, certificate(directory, NAME));
    receiver.sigterm();
    assert_eq!(receiver.exit(WITHIN).await.code(), Some(0));
}

#[tokio::test]
async fn both_versions_are_spoken_and_sessions_are_resumed() {
    let scene = Scene::new();
    let _redis = scene.cell.redis(&[]).await;
    let receiver = scene.receiver(&[]).await;
    for (version, expected) in [
        (&rustls::version::TLS12, ProtocolVersion::TLSv1_2),
        (&rustls::version::TLS13, ProtocolVersion::TLSv1_3),
    ] {
        let client = scene.client(&[version]);
        for kind in [HandshakeKind::Full, HandshakeKind::Resumed] {
            let stream = TcpStream::connect(scene.address).await.expect("connect");
            let name = ServerName::try_from(NAME).expect("a name");
            let mut stream = client.connect(name, stream).await.expect("shake hands");
            stream.write_all(&Webhook::any().encode()).await.expect("write");
            let mut answer = [0; 12];
            stream.read_exact(&mut answer).await.expect("read");
            assert_eq!(&answer, b"HTTP/1.1 200");
            let session = stream.get_ref().1;
            assert_eq!(session.protocol_version(), Some(expected));
            assert_eq!(session.handshake_kind(), Some(kind), "{expected:?}");
        }
    }
    let done = receiver.metric("spillway_tls_handshakes_total{outcome=\"done\"}").await;
    assert_eq!(done, Some(4.0));
}

#[tokio::test]
async fn handshakes_that_are_never_ended_are_cut_off_and_keep_nobody_out() {
    let scene = Scene::new();
    let _redis = scene.cell.redis(&[]).await;
    let receiver = scene.receiver(&[("HEADER_TIMEOUT", "5s")]).await;
    let tunnel = Tunnel::to(scene.address, NAME, &scene.authority).await;
    // More than all shards take at once. Each sends the first byte of a handshake.
    let mut half = Vec::new();
    for _ in 0..1_500 {
        let mut stream = TcpStream::connect(scene.address).await.expect("connect");
        stream.write_all(&[0x16]).await.expect("write");
        half.push(stream);
    }
    for _ in 0..20 {
        post(tunnel.address(), &Webhook::any()).await.expect_stored();
    }
    for mut stream in half {
        // Closed or reset: it was cut off.
        let ended = tokio::time::timeout(WITHIN, stream.read(&mut [0; 1])).await;
        assert!(!matches!(ended.expect("it is cut off"), Ok(1)), "it gets no answer");
    }
    let outcome = async |name: &str| {
        let metric = format!("spillway_tls_handshakes_total{{outcome=\"{name}\"}}");
        receiver.metric(&metric).await
    };
    assert_eq!(outcome("cut").await, Some(1_500.0));
    // Who speaks no TLS is not served, and harms nobody.
    post_plain(scene.address).await;
    until("it is counted", WITHIN, async || outcome("failed").await == Some(1.0)).await;
    post(tunnel.address(), &Webhook::any()).await.expect_stored();
}

async fn post_plain(address: SocketAddr) {
    let mut stream = TcpStream::connect(address).await.expect("connect");
    stream.write_all(&Webhook::any().encode()).await.expect("write");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.ok();
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
}

#[tokio::test]
async fn settings_that_do_not_fit_are_told_at_the_check() {
    let scene = Scene::new();
    let directory = scene.cell.directory().display().to_string();
    let [served, of_other] = ["served.pem", "other.example.key"].map(|it| format!("{directory}/{it}"));
    let check = async |settings: &[(&str, &str)]| {
        let ended = scene.cell.run("request-receiver", &["--check"], settings).await;
        (ended.status.code(), String::from_utf8_lossy(&ended.stderr).into_owned())
    };
    for (settings, told) in [
        (&[("TLS_CERT_FILE", served.as_str())][..], "LISTEN_TLS: is needed"),
        (&[("LISTEN_TLS", "127.0.0.1:1")], "TLS_CERT_FILE: and TLS_KEY_FILE must name"),
        (
            &[
                ("LISTEN_TLS", "127.0.0.1:1"),
                ("TLS_CERT_FILE", &served),
                ("TLS_KEY_FILE", &of_other),
            ],
            "other.example.key is not the key of",
        ),
        (
            &[("LISTEN_TLS", "127.0.0.1:1"), ("TLS_CERT_FILE", &served), ("TLS_KEY_FILE", "/no")],
            "cannot read /no",
        ),
    ] {
        let (code, text) = check(settings).await;
        assert_eq!(code, Some(78), "{text}");
        assert!(text.contains(told), "{text}");
    }
}
