//! A Redis with restricted access: TLS with its own authority, a client certificate and a password;
//! a cluster of one shard in a failover; and users with exactly the required permissions, or fewer.

use std::time::Duration;

use stories::authority::Authority;
use stories::backend::Backend;
use stories::binaries;
use stories::cell::Cell;
use stories::client::post;
use stories::port;
use stories::redis_server::RedisServer;
use stories::until::until;
use stories::webhook::Webhook;

const SOON: Duration = Duration::from_secs(30);

/// Options of a Redis that is reached only by TLS, with a certificate for `localhost`.
fn tls(cell: &Cell, port: &str, more: &[(&str, &str)]) -> Vec<String> {
    let file = |name: &str| cell.directory().join(name).to_str().expect("a plain path").to_owned();
    let mut options: Vec<String> = [
        ("--tls-port", port),
        ("--bind", "127.0.0.1"),
        ("--tls-cert-file", &file("localhost.pem")),
        ("--tls-key-file", &file("localhost.key")),
        ("--tls-ca-cert-file", &file("authority.pem")),
    ]
    .iter()
    .chain(more)
    .flat_map(|(name, value)| [(*name).to_owned(), (*value).to_owned()])
    .collect();
    options.retain(|word| !word.is_empty());
    options
}

fn words(options: &[String]) -> Vec<&str> {
    options.iter().map(String::as_str).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_asks_for_a_certificate_and_a_password_lets_in_who_has_them() {
    let cell = Cell::shared();
    let authority = Authority::new(cell.directory(), "authority");
    authority.certify("localhost");
    authority.certify("receiver");
    let (port, file) = (port::free().port().to_string(), |name: &str| {
        cell.directory().join(name).to_str().expect("a plain path").to_owned()
    });
    std::fs::write(cell.directory().join("password"), "hush\n").expect("write the password");
    let options = tls(&cell, &port, &[("--tls-auth-clients", "yes")]);
    let redis = cell.redis(&words(&options)).await;
    redis.command::<String>(&["CONFIG", "SET", "requirepass", "hush"]).await;

    let url = format!("rediss://localhost:{port}/0");
    let ca = authority.certificate();
    let (certificate, key, password) =
        (file("receiver.pem"), file("receiver.key"), file("password"));
    let all = [
        ("REDIS_URL", url.as_str()),
        ("REDIS_CA_FILE", &ca),
        ("REDIS_CERT_FILE", &certificate),
        ("REDIS_KEY_FILE", &key),
        ("REDIS_PASSWORD_FILE", &password),
    ];
    let receiver = cell.receiver(&all).await;
    post(receiver.address(), &Webhook::any()).await.expect_stored();
    for missing in [&all[..2], &all[..4], &[all[0], all[2], all[3], all[4]]] {
        let receiver = cell.receiver_starting(missing);
        receiver.unready("queue_").await;
    }
}

/// The ACL rule of docs/redis.md for a user, as words.
fn documented_rule(user: &str) -> Vec<String> {
    let page = std::fs::read_to_string(binaries::repository().join("docs/redis.md"));
    let page = page.expect("docs/redis.md");
    let beginning = format!("ACL SETUSER {user} ");
    let (_, rest) = page.split_once(&beginning).expect("the page has the rule");
    let (rule, _) = rest.split_once("```").expect("it ends");
    let rule = rule.replace("a-long-password", "hush").replace('\\', " ");
    ["ACL", "SETUSER", user].into_iter().chain(rule.split_whitespace()).map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_by_the_documented_rule_has_all_it_needs_and_one_with_less_is_told_what() {
    let cell = Cell::shared();
    let redis = cell.redis(&[]).await;
    let rule = documented_rule("spillway");
    redis.command::<String>(&words(&rule)).await;
    let password = cell.directory().join("password");
    std::fs::write(&password, "hush\n").expect("write the password");
    let url = format!("{}?user=spillway", cell.redis_url());
    let settings = [
        ("REDIS_URL", url.as_str()),
        ("REDIS_PASSWORD_FILE", password.to_str().expect("a plain path")),
    ];
    let backend = Backend::start().await;
    let receiver = cell.receiver(&settings).await;
    let downstreamer = cell.downstreamer(&backend, &settings).await;
    until("the downstreamer owns the queue", SOON, async || downstreamer.is_leader().await).await;
    for _ in 0..20 {
        post(receiver.address(), &Webhook::any()).await.expect_stored();
    }
    until("they are delivered", SOON, async || backend.delivered() >= 20).await;
    until("all is settled", SOON, async || redis.stream_len("{spillway}:in").await == 0).await;
    drop(downstreamer);
    for command in ["multi", "exec", "xadd", "hincrby"] {
        let less = format!("-{command}");
        redis.command::<String>(&["ACL", "SETUSER", "spillway", &less]).await;
        receiver.unready(&command.to_uppercase()).await;
        post(receiver.address(), &Webhook::any()).await.expect_later("queue_unavailable");
        redis.command::<String>(&words(&rule)).await;
        receiver.ready().await;
    }
    assert_eq!(redis.stream_len("{spillway}:in").await, 0, "what was refused is stored");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_user_of_the_console_has_what_its_verbs_need_and_reads_no_password() {
    let cell = Cell::shared();
    let redis = cell.redis(&[]).await;
    redis.command::<String>(&words(&documented_rule("spillway-console"))).await;
    let password = cell.directory().join("password");
    std::fs::write(&password, "hush\n").expect("write the password");
    let url = format!("{}?user=spillway-console", cell.redis_url());
    let settings = [
        ("REDIS_URL", url.as_str()),
        ("REDIS_PASSWORD_FILE", password.to_str().expect("a plain path")),
    ];
    let added = cell.spillway(&["consumers", "add", "http"]).await;
    assert!(added.status.success(), "{added:?}");
    let receiver = cell.receiver(&[]).await;
    for _ in 0..5 {
        post(receiver.address(), &Webhook::any()).await.expect_stored();
    }
    let mut told = String::new();
    for verb in [
        &["status"][..],
        &["top"],
        &["queue", "list"],
        &["dead", "list"],
        &["pause", "--all"],
        &["resume", "--all"],
        &["audit", "-o", "json"],
    ] {
        let done = cell.run("spillway", verb, &settings).await;
        assert!(done.status.success(), "{verb:?}: {done:?}");
        told = String::from_utf8_lossy(&done.stdout).into_owned();
    }
    let is_control = |line: &&str| {
        ["pause", "resume"].iter().any(|verb| line.contains(&format!(r#""verb":"{verb}""#)))
    };
    let verbs: Vec<_> = told.lines().filter(is_control).collect();
    assert_eq!(verbs.len(), 2, "the pause and its end are on record: {told}");
    for forbidden in [
        &["CONFIG", "GET", "requirepass"][..],
        &["CONFIG", "SET", "requirepass", "x"],
        &["ACL", "LIST"],
        &["FLUSHALL"],
        &["KEYS", "*"],
        &["GET", "other:key"],
        &["CLIENT", "KILL", "ID", "1"],
        &["XGROUP", "DESTROY", "{spillway}:in", "http"],
        &["SCRIPT", "FLUSH"],
        &["FUNCTION", "LIST"],
    ] {
        let asked = [&["ACL", "DRYRUN", "spillway-console"][..], forbidden].concat();
        let answer = redis.command::<String>(&asked).await;
        assert!(answer.contains("no permissions"), "{forbidden:?}: {answer}");
    }
    // The page says so: the verbs drop webhooks.
    let delete = ["ACL", "DRYRUN", "spillway-console", "DEL", "{spillway}:in"];
    assert_eq!(redis.command::<String>(&delete).await, "OK");
}

/// Starts a cluster node that knows no other node yet.
async fn node(cell: &Cell, port: u16) -> (RedisServer, u16) {
    let bus = port::free().port();
    let (port, bus_text) = (port.to_string(), bus.to_string());
    let more = [
        ("--tls-auth-clients", "no"),
        ("--tls-replication", "yes"),
        ("--tls-cluster", "yes"),
        ("--cluster-enabled", "yes"),
        ("--cluster-port", bus_text.as_str()),
        ("--cluster-announce-hostname", "localhost"),
        ("--cluster-preferred-endpoint-type", "hostname"),
    ];
    let options = tls(cell, &port, &more);
    (cell.redis(&words(&options)).await, bus)
}

async fn says(redis: &RedisServer, words: &[&str], part: &str) -> bool {
    redis.try_command::<String>(words).await.is_ok_and(|said| said.contains(part))
}

/// Stores a webhook, once the cluster has settled.
async fn store(receiver: std::net::SocketAddr) {
    until("a webhook is stored", SOON, async || {
        post(receiver, &Webhook::any()).await.status == 200
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_of_one_shard_is_followed_through_failovers() {
    let (cell, other) = (Cell::shared(), Cell::beside());
    let authority = Authority::new(cell.directory(), "authority");
    authority.certify("localhost");
    for name in ["authority.pem", "localhost.pem", "localhost.key"] {
        std::fs::copy(cell.directory().join(name), other.directory().join(name)).expect("copy it");
    }
    let [first_port, second_port] = [port::free().port(), port::free().port()];
    let (first, _) = node(&cell, first_port).await;
    let (mut second, second_bus) = node(&other, second_port).await;
    first.command::<String>(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]).await;
    let (port, bus) = (second_port.to_string(), second_bus.to_string());
    first.command::<String>(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]).await;
    let id: String = first.command(&["CLUSTER", "MYID"]).await;
    until("they know each other", SOON, async || says(&second, &["CLUSTER", "NODES"], &id).await)
        .await;
    until("the second is a replica", SOON, async || {
        second.try_command::<String>(&["CLUSTER", "REPLICATE", &id]).await.is_ok()
    })
    .await;
    let replication = ["INFO", "replication"];
    until("it is in step", SOON, async || {
        says(&second, &replication, "master_link_status:up").await
    })
    .await;

    let nobody = port::free().port();
    let url = format!(
        "rediss+cluster://localhost:{nobody},localhost:{first_port},localhost:{second_port}"
    );
    let ca = authority.certificate();
    let settings = [("REDIS_URL", url.as_str()), ("REDIS_CA_FILE", &ca)];
    let backend = Backend::start().await;
    let receiver = cell.receiver(&settings).await;
    let downstreamer = cell.downstreamer(&backend, &settings).await;
    until("the downstreamer owns the queue", SOON, async || downstreamer.is_leader().await).await;
    for _ in 0..20 {
        post(receiver.address(), &Webhook::any()).await.expect_stored();
    }
    until("they are delivered", SOON, async || backend.delivered() >= 20).await;

    // The operator moves the shard. The first node reports that it has moved.
    second.command::<String>(&["CLUSTER", "FAILOVER"]).await;
    until("the second is the master", SOON, async || {
        says(&second, &replication, "role:master").await
    })
    .await;
    for _ in 0..20 {
        store(receiver.address()).await;
    }
    until("they are delivered, too", SOON, async || backend.delivered() >= 40).await;

    // The second dies, and an operator promotes the first: one shard has no majority to elect it.
    until("the first is in step", SOON, async || {
        says(&first, &replication, "master_link_status:up").await
    })
    .await;
    second.kill9();
    first.command::<String>(&["CLUSTER", "FAILOVER", "TAKEOVER"]).await;
    for _ in 0..20 {
        store(receiver.address()).await;
    }
    until("all are delivered", SOON, async || backend.delivered() >= 60).await;
    until("all is settled", SOON, async || first.stream_len("{spillway}:in").await == 0).await;
}
