//! Shops with client secrets of their own, from a directory and from an endpoint: who may sign for
//! whom, the rotation of a secret, an endpoint that is slow or down, strangers.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use stories::backend::Backend;
use stories::behaviour::Behaviour;
use stories::cell::Cell;
use stories::client::{Connection, post};
use stories::ledger::Event;
use stories::report::say;
use stories::service::Service;
use stories::shop;
use stories::size::size;
use stories::until::until;
use stories::webhook::Webhook;

const SOON: Duration = Duration::from_secs(60);
/// Shops whose secrets are tried with every shop's domain.
const SAMPLE: u64 = 20;

fn secret(shop: u64) -> String {
    format!("secret-of-shop-{shop}")
}

/// A secret that replaces another.
const NEW: &str = "secret-that-is-new";

/// A webhook that names a shop, signed with a secret.
fn signed(shop: u64, sequence: u64, secret: &str) -> Webhook {
    shop::webhook(shop, "products/update", Event { resource: shop, sequence }).signed_with(secret)
}

fn write(directory: &Path, shop: u64, secrets: &[&str]) {
    let new = directory.join(".new");
    fs::write(&new, secrets.join("\n")).expect("write the secrets");
    fs::rename(new, directory.join(shop::domain(shop))).expect("rename the file");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_shop_is_signed_for_by_its_own_secret() {
    let shops = size(1_000, 10_000);
    let cell = Cell::shared();
    let _redis = cell.redis(&[]).await;
    let directory = cell.directory().join("shop-secrets");
    fs::create_dir(&directory).expect("make the directory");
    for shop in 1..=shops {
        write(&directory, shop, &[&secret(shop)]);
    }
    let path = directory.to_str().expect("a path in UTF-8");
    let receiver = cell.receiver(&[("SHOP_SECRETS_DIR", path)]).await;
    let address = receiver.address();
    // Spread over all shops.
    let sample: Vec<u64> = (0..SAMPLE).map(|at| 1 + at * (shops - 1) / (SAMPLE - 1)).collect();
    for claimed in &sample {
        for signer in &sample {
            let answer = post(address, &signed(*claimed, 1, &secret(*signer))).await;
            if claimed == signer {
                answer.expect_stored();
            } else {
                answer.expect(401, "bad_signature");
            }
        }
    }
    // The app's secret is valid for all of them, and for shops without a file.
    let event = Event { resource: 1, sequence: 2 };
    post(address, &shop::webhook(1, "products/update", event)).await.expect_stored();
    let stranger = shops + 1;
    post(address, &shop::webhook(stranger, "products/update", event)).await.expect_stored();
    post(address, &signed(stranger, 3, &secret(stranger))).await.expect(401, "bad_signature");

    // Rotation: first both secrets, then the new one alone. None that Shopify signs is refused.
    let reloads = || receiver.output().matches("secrets read again").count();
    write(&directory, 1, &[&secret(1), "new"]);
    receiver.sighup();
    until("the secrets are read again", SOON, async || {
        post(address, &signed(1, 4, &secret(1))).await.expect_stored();
        reloads() == 1
    })
    .await;
    post(address, &signed(1, 5, &secret(1))).await.expect_stored();
    post(address, &signed(1, 6, "new")).await.expect_stored();
    write(&directory, 1, &["new"]);
    receiver.sighup();
    until("they are read again", SOON, async || {
        post(address, &signed(1, 7, "new")).await.expect_stored();
        reloads() == 2
    })
    .await;
    post(address, &signed(1, 8, &secret(1))).await.expect(401, "bad_signature");

    // A mistake changes nothing.
    fs::write(directory.join("no-domain"), "x").expect("write a file");
    write(&directory, 1, &["newest"]);
    receiver.sighup();
    until("the mistake is logged", SOON, async || {
        receiver.output().contains("no-domain is not named like example.myshopify.com")
    })
    .await;
    post(address, &signed(1, 9, "new")).await.expect_stored();
    say(&format!("shop secrets: {shops} shops, all pairs of {SAMPLE}, one secret rotated"));
}

/// The endpoint that names secrets: a backend that answers by the path.
struct Endpoint {
    server: Backend,
    told: Arc<Mutex<Told>>,
}

/// Answers of the endpoint.
#[derive(Default)]
struct Told {
    /// Answer for each shop's domain.
    answers: HashMap<String, String>,
    delay: Duration,
    is_down: bool,
    token: String,
}

impl Told {
    /// Answer about several shops, comma separated. One that is not told of is not named.
    fn of_several(&self, shops: &str) -> String {
        let named = shops.split(',').filter_map(|shop| {
            let answer = self.answers.get(shop)?;
            Some(format!("\"{shop}\": {answer}"))
        });
        format!("{{{}}}", named.collect::<Vec<_>>().join(","))
    }
}

impl Endpoint {
    async fn start(token: &str) -> Self {
        let told = Told { token: token.to_owned(), ..Told::default() };
        let told = Arc::new(Mutex::new(told));
        let server = Backend::start().await;
        let answers = told.clone();
        server.behave(move |asked| {
            let told = answers.lock().expect("nobody panicked");
            let bearer = format!("Bearer {}", told.token);
            let is_known = asked.headers.text("Authorization") == Some(&bearer);
            if let Some(shops) = asked.target.strip_prefix("/several?of=")
                && is_known
                && !told.is_down
            {
                return Behaviour::text(told.of_several(shops), told.delay);
            }
            let shop = asked.target.strip_prefix("/shops/").and_then(|rest| rest.split('?').next());
            match shop.and_then(|shop| told.answers.get(shop)) {
                _ if told.is_down => Behaviour::status(500),
                _ if !is_known => Behaviour::status(401),
                Some(answer) => Behaviour::text(answer.clone(), told.delay),
                None => Behaviour::status(404),
            }
        });
        Self { server, told }
    }

    fn tell(&self, change: impl FnOnce(&mut Told)) {
        change(&mut self.told.lock().expect("nobody panicked"));
    }

    fn name(&self, shop: u64, secrets: &[&str]) {
        let answer = serde_json::json!({ "secrets": secrets }).to_string();
        self.tell(|told| {
            told.answers.insert(shop::domain(shop), answer);
        });
    }

    fn lookups(&self, shop: u64) -> usize {
        let target = format!("/shops/{}?all", shop::domain(shop));
        self.server.look(|asked| asked.iter().filter(|one| one.target == target).count())
    }
}

/// Shops that the endpoint names.
const KNOWN: u64 = 20;

/// A receiver that asks the endpoint about one shop at a time.
async fn asking(cell: &Cell, endpoint: &Endpoint, ttl: &str, rate: &str) -> Service {
    asking_at(cell, endpoint, "/shops/{shop}?all", ttl, rate).await
}

/// A receiver that asks the endpoint at `path`.
async fn asking_at(cell: &Cell, endpoint: &Endpoint, path: &str, ttl: &str, rate: &str) -> Service {
    let token = cell.directory().join("token");
    fs::write(&token, "letter\n").expect("write the token");
    let url = format!("{}{path}", endpoint.server.url());
    let settings = [
        ("SHOP_SECRETS_URL", url.as_str()),
        ("SHOP_SECRETS_TOKEN_FILE", token.to_str().expect("a path in UTF-8")),
        ("SHOP_SECRETS_TTL", ttl),
        ("SHOP_SECRETS_RATE", rate),
    ];
    cell.receiver(&settings).await
}

async fn with_known_shops() -> Endpoint {
    let endpoint = Endpoint::start("letter").await;
    for shop in 1..=KNOWN {
        endpoint.name(shop, &[&secret(shop)]);
    }
    endpoint
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_names_the_secrets_of_each_shop() {
    let cell = Cell::shared();
    let _redis = cell.redis(&[]).await;
    let endpoint = with_known_shops().await;
    // Other forms of an answer.
    endpoint.tell(|told| {
        told.answers.insert(shop::domain(2), format!("{}\n{NEW}\n", secret(2)));
        told.answers.insert(shop::domain(3), format!("[\"{}\"]", secret(3)));
        told.answers.insert(shop::domain(4), format!("\"{}\"", secret(4)));
        told.delay = Duration::from_millis(300);
    });
    let receiver = asking(&cell, &endpoint, "2s", "30").await;
    let address = receiver.address();

    // A hundred requests at once wait for one lookup.
    let crowd: Vec<_> = (0..100)
        .map(|number| signed(1, number, &secret(1)))
        .map(|webhook| tokio::spawn(async move { post(address, &webhook).await }))
        .collect();
    for sent in crowd {
        sent.await.expect("it was sent").expect_stored();
    }
    assert_eq!(endpoint.lookups(1), 1);
    endpoint.tell(|told| told.delay = Duration::ZERO);
    for claimed in 1..=KNOWN {
        for signer in 1..=KNOWN {
            let answer = post(address, &signed(claimed, 200 + signer, &secret(signer))).await;
            if claimed == signer {
                answer.expect_stored();
            } else {
                // 503: within a second after the last lookup because of a wrong signature.
                assert!(matches!(answer.status, 401 | 503), "{}", answer.status);
            }
        }
    }
    post(address, &signed(2, 300, NEW)).await.expect_stored();
    // The app's secret is valid for all.
    let event = Event { resource: 99, sequence: 1 };
    post(address, &shop::webhook(99, "products/update", event)).await.expect_stored();
    post(address, &signed(98, 1, &secret(98))).await.expect(401, "bad_signature");

    // A secret that is replaced without a transition: the first webhook that it signs is taken, and
    // one that is signed with the old one is refused.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    endpoint.name(1, &[NEW]);
    post(address, &signed(1, 400, NEW)).await.expect_stored();
    tokio::time::sleep(Duration::from_millis(1100)).await;
    post(address, &signed(1, 401, &secret(1))).await.expect(401, "bad_signature");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_endpoint_fails_what_is_known_serves() {
    let cell = Cell::shared();
    let _redis = cell.redis(&[]).await;
    let endpoint = with_known_shops().await;
    let receiver = asking(&cell, &endpoint, "2s", "30").await;
    let address = receiver.address();
    for shop in 1..=KNOWN {
        post(address, &signed(shop, 1, &secret(shop))).await.expect_stored();
    }
    // For longer than an answer is valid.
    endpoint.tell(|told| told.is_down = true);
    for number in 0..40 {
        for shop in 1..=KNOWN {
            post(address, &signed(shop, 100 + number, &secret(shop))).await.expect_stored();
        }
        let unknown = post(address, &signed(97, number, &secret(97))).await;
        unknown.expect(503, "secrets_unavailable");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(receiver.metric("spillway_stale_secrets_total").await > Some(0.0));
    endpoint.tell(|told| told.is_down = false);

    // The token is replaced.
    endpoint.tell(|told| told.token = "other letter".to_owned());
    fs::write(cell.directory().join("token"), "other letter").expect("write the token");
    receiver.sighup();
    endpoint.name(96, &[NEW]);
    endpoint.name(5, &[NEW]);
    for shop in [96, 5] {
        until("the endpoint is asked with the new token", SOON, async || {
            post(address, &signed(shop, 600, NEW)).await.status == 200
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shops_that_are_due_together_are_looked_up_by_one_request() {
    let cell = Cell::busy();
    let _redis = cell.redis(&[]).await;
    let endpoint = with_known_shops().await;
    let path = "/several?of={shops}";
    let receiver = asking_at(&cell, &endpoint, path, "4s", "30").await;
    let address = receiver.address();
    // A lookup of a shop that a stranger may have named is for this one alone.
    let first: Vec<_> = (1..=KNOWN)
        .map(|shop| signed(shop, 1, &secret(shop)))
        .map(|webhook| tokio::spawn(async move { post(address, &webhook).await }))
        .collect();
    for sent in first {
        sent.await.expect("it was sent").expect_stored();
    }
    let requests = |of_several: bool| {
        let is_meant = |target: &str| target.contains(',') == of_several;
        endpoint.server.look(|asked| asked.iter().filter(|one| is_meant(&one.target)).count())
    };
    assert_eq!((requests(false), requests(true)), (KNOWN as usize, 0));
    // A shop that the endpoint does not name, or names without secrets.
    post(address, &signed(98, 1, &secret(98))).await.expect(503, "secrets_unavailable");
    endpoint.name(99, &[]);
    post(address, &signed(99, 1, &secret(99))).await.expect(401, "bad_signature");

    let lookups =
        async || receiver.metric("spillway_secret_lookups_total").await.expect("a metric");
    let looked_up = lookups().await;
    let asked = endpoint.server.count();
    // One of them is not named any more, and the answers about others make no sense: they serve on,
    // and all others are looked up.
    endpoint.tell(|told| {
        told.answers.remove(&shop::domain(2));
        told.answers.insert(shop::domain(3), "\"OK\"".to_owned());
        told.answers.insert(shop::domain(4), "null".to_owned());
    });
    for shop in 5..=KNOWN {
        endpoint.name(shop, &[&secret(shop), &format!("{NEW}-{shop}")]);
    }
    for number in 0..60 {
        for shop in 1..=KNOWN {
            post(address, &signed(shop, 100 + number, &secret(shop))).await.expect_stored();
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let looked_up = lookups().await - looked_up;
    let asked = endpoint.server.count() - asked;
    say(&format!("shop secrets: {looked_up} lookups of shops by {asked} requests"));
    assert!(looked_up >= KNOWN as f64, "{looked_up} lookups");
    assert!(requests(true) > 0 && (asked as f64) < 0.8 * looked_up, "{asked} requests");
    let looked_up = lookups().await;
    for shop in 5..=KNOWN {
        post(address, &signed(shop, 1, &format!("{NEW}-{shop}"))).await.expect_stored();
    }
    let again = lookups().await - looked_up;
    assert!(again < (KNOWN - 4) as f64 / 2.0, "{again} lookups after signatures that were known");

    // A status other than 200 says nothing of any shop.
    endpoint.tell(|told| told.token = "other letter".to_owned());
    for number in 0..60 {
        for shop in 1..=KNOWN {
            post(address, &signed(shop, 200 + number, &secret(shop))).await.expect_stored();
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Shops that a stranger names.
const NAMED: u64 = 3_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_who_names_many_shops_makes_few_lookups() {
    let cell = Cell::shared();
    let _redis = cell.redis(&[]).await;
    let endpoint = Endpoint::start("letter").await;
    endpoint.name(1, &[&secret(1)]);
    let receiver = asking(&cell, &endpoint, "1s", "10").await;
    let address = receiver.address();
    post(address, &signed(1, 1, &secret(1))).await.expect_stored();
    let began = std::time::Instant::now();
    let mut connection = Connection::to(address).await;
    for shop in 1_000..1_000 + NAMED {
        let status = connection.post(&signed(shop, 1, "guess")).await.status;
        assert!(matches!(status, 401 | 503), "{status}");
        if shop % 50 == 0 {
            post(address, &signed(1, shop, &secret(1))).await.expect_stored();
            let guess = post(address, &signed(1, shop, "guess")).await.status;
            assert!(matches!(guess, 401 | 503), "{guess}");
        }
    }
    let seconds = began.elapsed().as_secs() + 1;
    let strangers = endpoint.server.count() - endpoint.lookups(1);
    assert!(strangers >= 100, "{strangers} lookups");
    assert!(strangers as u64 <= 100 + 10 * seconds, "{strangers} lookups in {seconds} s");
    say(&format!(
        "shop secrets: {NAMED} shops named by a stranger, {strangers} lookups in {seconds} s"
    ));
    // They are forgotten.
    until("only the known shop is remembered", SOON, async || {
        post(address, &signed(1, 2, &secret(1))).await.expect_stored();
        receiver.metric("spillway_secret_shops").await <= Some(1.0)
    })
    .await;
}
