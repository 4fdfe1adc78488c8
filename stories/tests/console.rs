//! The console: logins and their limits, requests that pretend to be something else, secrets, proxies and files.
//! [`console_routes`](crate::console_routes) tries every route.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use serde_json::json;
use stories::cell::Cell;
use stories::console::{Accounts, ConsoleClient, ConsoleServer, percent};
use stories::console_cell::{ConsoleCell, PEOPLE};
use stories::port;
use stories::shop;

use crate::console_routes::routes;

const SOON: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_by_a_browser_needs_its_origin_and_the_token_of_its_own_session() {
    let office = ConsoleCell::start(Cell::shared(), &[]).await;
    let (otto, ada) = (office.console.login("otto").await, office.console.login("ada").await);
    let domain = shop::domain(7);
    let token = otto.csrf("/lanes").await;
    let pause = async |client: &ConsoleClient, token: &str| {
        let fields = [("consumer", "http"), ("shop", domain.as_str()), ("csrf", token)];
        client.submit_bare("/lanes/pause", &fields).await.status
    };
    let own = office.console.url();
    let own = own.trim_end_matches('/');
    for (what, client) in [
        ("another site", otto.clone().header("Sec-Fetch-Site", "cross-site")),
        ("a site beside us", otto.clone().header("Sec-Fetch-Site", "same-site")),
        ("a form of a file", otto.clone().header("Sec-Fetch-Site", "").header("Origin", "null")),
        (
            "another origin",
            otto.clone().header("Sec-Fetch-Site", "").header("Origin", "https://evil.example"),
        ),
        ("no origin", otto.clone().header("Sec-Fetch-Site", "")),
        ("another host", otto.clone().header("Host", "evil.example")),
        ("nobody", office.console.browser()),
    ] {
        let status = pause(&client, &token).await;
        assert!(matches!(status, 401 | 403), "{what}: {status}");
    }
    let of_another = ada.csrf("/lanes").await;
    for (what, wrong) in [("no", ""), ("a made-up", "0000"), ("another's", of_another.as_str())] {
        assert_eq!(pause(&otto, wrong).await, 403, "{what} token");
    }
    // The API, used by a browser with the same cookie.
    let body = json!({ "selection": { "shop": domain } });
    let answer = otto.post("/api/v1/consumers/http/pause", &body).await;
    assert_eq!(answer.status, 403, "{}", answer.text());
    let read = otto.get("/lanes/pause").await;
    assert_eq!(read.status, 405, "a change by GET");
    assert_eq!(office.pauses().await, [""; 0]);

    let by_origin = otto.clone().header("Sec-Fetch-Site", "").header("Origin", own);
    assert_eq!(pause(&by_origin, &token).await, 303, "the page's own form");
    let pauses = office.pauses().await;
    assert!(pauses.len() == 1 && pauses[0].contains(&domain), "{pauses:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_begins_with_its_login_and_ends_with_its_logout() {
    let office = ConsoleCell::start(Cell::shared(), &[]).await;
    let console = &office.console;
    let password = Accounts::password("sue");
    let set_by_login = console.browser().guess("sue", &password).await;
    let set = set_by_login.headers.text("set-cookie").expect("a cookie").to_owned();
    for attribute in ["HttpOnly", "SameSite=Strict", "Path=/"] {
        assert!(set.contains(attribute), "{attribute} is missing: {set}");
    }
    let (name, _) = set.split_once('=').expect("a cookie has a name");
    // A session id that somebody else planted before the login.
    let planted = format!("{name}=0123456789abcdef0123456789abcdef0123456789abcdef");
    let sue = console.login_with(Some(&planted), "sue", &password).await.expect("a login");
    assert_ne!(sue.sent("Cookie"), Some(planted.as_str()), "the planted id became a session");
    let planted = console.browser().header("Cookie", &planted);
    assert!(matches!(planted.get("/dead").await.status, 303 | 401));
    // An id of a session that has ended or goes on is never used again.
    let before = sue.sent("Cookie").expect("a session").to_owned();
    let again = console.login_with(Some(&before), "sue", &password).await.expect("a login");
    assert_ne!(again.sent("Cookie"), Some(before.as_str()), "the id was not changed by the login");
    assert_eq!(again.get("/dead").await.status, 200);
    let out = again.submit("/dead", "/logout", &[]).await;
    assert_eq!(out.status, 303, "{}", out.text());
    assert!(matches!(again.get("/dead").await.status, 303 | 401), "the session goes on");
    let answer = again.get("/api/v1/dead").await;
    assert_eq!(answer.status, 401, "{}", answer.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_leads_to_pages_of_the_console_only() {
    let office = ConsoleCell::start(Cell::shared(), &[]).await;
    let browser = office.console.browser();
    let answer = browser.get("/dead?shop=a.myshopify.com").await;
    assert_eq!(answer.status, 303, "{}", answer.text());
    let to = answer.headers.text("location").expect("a place").to_owned();
    assert!(to.starts_with("/login?next="), "{to}");
    let password = Accounts::password("sue");
    for next in [
        "//evil.example/",
        "https://evil.example/",
        "/\\evil.example/",
        "\\\\evil.example",
        "javascript:alert(1)",
        "/dead\r\nSet-Cookie: a=b",
        "/%0d%0aSet-Cookie:%20a=b",
    ] {
        let fields = [("user", "sue"), ("password", password.as_str()), ("next", next)];
        let answer = browser.submit_bare("/login", &fields).await;
        let to = answer.headers.text("location").unwrap_or("/");
        let is_ours = to.starts_with('/') && !to.starts_with("//") && !to.contains('\\');
        assert!(is_ours, "{next:?} led to {to:?}");
        let cookies = answer.headers.all("set-cookie");
        assert!(cookies.iter().all(|set| !set.starts_with(b"a=")), "{next:?} set a cookie");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guesses_of_a_password_are_few_and_tell_nothing() {
    let office = ConsoleCell::start(Cell::shared(), &[]).await;
    let browser = office.console.browser();
    let mut known = Vec::new();
    let mut unknown = Vec::new();
    for guess in 0..40 {
        let wrong = format!("a wrong password {guess}");
        known.push(browser.guess("otto", &wrong).await);
        unknown.push(browser.guess("nobody-of-ours", &wrong).await);
    }
    for (who, answers) in [("a user", &known), ("an unknown name", &unknown)] {
        let looked_at = answers.iter().filter(|answer| answer.status != 429).count();
        assert!((1..=20).contains(&looked_at), "{looked_at} guesses of {who} were looked at");
        assert!(answers.iter().all(|answer| answer.headers.text("set-cookie").is_none()));
        assert!(answers.iter().all(|answer| answer.status != 500), "{who}");
    }
    let (first, other) = (known[0].text(), unknown[0].text().replace("nobody-of-ours", "otto"));
    let plain = |text: &str| {
        // The token of the form differs from page to page.
        let token = stories::console::csrf_in(text).unwrap_or_default();
        text.replace(&token, "")
    };
    assert_eq!(plain(&first), plain(&other), "the page tells who exists");
    let right = browser.guess("otto", &Accounts::password("otto")).await;
    assert_eq!(right.status, 429, "the right password ends the wait");
    // A program with a token is not locked out by this.
    assert_eq!(office.program("otto").get("/api/v1/status").await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_secret_is_shown_on_any_page_or_in_any_answer() {
    const HUSH: &str = "a-secret-that-nobody-may-read";
    let cell = Cell::shared();
    // Somebody gave the console the settings of all processes.
    let office = ConsoleCell::start(cell, &[("SHOPIFY_CLIENT_SECRET", HUSH)]).await;
    let id = office.bury(1, 1).await.remove(0);
    let mut secrets = vec![HUSH.to_owned(), stories::webhook::SECRET.to_owned()];
    let mut hashes = Vec::new();
    for (name, _, _) in PEOPLE {
        secrets.extend([Accounts::password(name), office.token(name).to_owned()]);
    }
    for file in office.accounts.files() {
        let text = std::fs::read_to_string(file).expect("the file of accounts");
        let kept = secrets.iter().find(|secret| text.contains(secret.as_str()));
        assert_eq!(kept, None, "{} keeps it as it is", file.display());
        let mode = file.metadata().expect("it is there").permissions().mode();
        assert_eq!(mode & 0o077, 0, "{} can be read by others", file.display());
        hashes.push(text);
    }
    // A hash is as good as a password that is too short.
    let words = hashes.iter().flat_map(|text| text.split([':', ' ', '"', '\n', '=']));
    secrets.extend(words.filter(|word| word.len() > 40).map(str::to_owned));
    let ada = office.program("ada");
    let pia = office.program("pia");
    let routes = routes();
    for route in routes.iter().filter(|route| route.is_read() && !route.is_stream()) {
        let path = route.with(&id, &shop::domain(1));
        for client in [&ada, &pia, &office.console.nobody()] {
            let answer = client.get(&path).await;
            let head = format!("{:?}", answer.headers);
            for secret in &secrets {
                let is_shown = answer.text().contains(secret) || head.contains(secret);
                assert!(!is_shown, "{path} shows {secret:?}");
            }
        }
    }
    let log = office.console.output();
    let shown = secrets.iter().find(|secret| log.contains(secret.as_str()));
    assert_eq!(shown, None, "the log shows it: {log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_is_believed_only_where_it_is_listed() {
    let cell = Cell::shared();
    let _redis = cell.redis(&[]).await;
    let accounts = Accounts::new(&cell);
    accounts.add_user("sue", "support", false).await;
    let header = ("TRUSTED_USER_HEADER", "X-Forwarded-User");
    for (proxies, is_believed) in [("127.0.0.1", true), ("10.0.0.0/8", false)] {
        let own = [header, ("TRUSTED_PROXIES", proxies)];
        let all = [&accounts.settings()[..], &own].concat();
        let console = ConsoleServer::start(&cell, &all).await;
        let sue = console.browser().header("X-Forwarded-User", "sue");
        let status = sue.get("/api/v1/dead").await.status;
        assert_eq!(status != 401, is_believed, "{proxies}: {status}");
        let stranger = console.browser().header("X-Forwarded-User", "stranger");
        let status = stranger.get("/api/v1/dead").await.status;
        assert!(matches!(status, 401 | 403), "a stranger by {proxies}: {status}");
        // What a client wrote itself, before the proxy's own line.
        let twice = sue.clone().header("x-forwarded-user", "stranger, sue");
        let status = twice.get("/api/v1/dead").await.status;
        assert!(matches!(status, 400 | 401 | 403), "two names by {proxies}: {status}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_console_that_others_can_reach_starts_with_tls_or_a_word_that_says_so() {
    let cell = Cell::shared();
    let _redis = cell.redis(&[]).await;
    let accounts = Accounts::new(&cell);
    accounts.add_user("sue", "support", false).await;
    let address = std::net::SocketAddr::from(([0, 0, 0, 0], port::free().port()));
    let mut refused = ConsoleServer::starting(&cell, address, &accounts.settings());
    let status = refused.exit(SOON).await;
    assert!(!status.success(), "it ended with {status}");
    let told = refused.output();
    assert!(told.contains("CONSOLE_TLS_CERT_FILE") && told.contains("CONSOLE_INSECURE"), "{told}");
    let anonymous = [("CONSOLE_INSECURE", "true"), ("CONSOLE_ANONYMOUS_ROLE", "viewer")];
    let mut refused = ConsoleServer::starting(&cell, address, &anonymous);
    let status = refused.exit(SOON).await;
    assert!(!status.success(), "everybody may read: it ended with {status}");
    let insecure = [&accounts.settings()[..], &[("CONSOLE_INSECURE", "true")]].concat();
    let console = ConsoleServer::starting(&cell, address, &insecure);
    stories::until::until("it runs", SOON, async || {
        console.nobody().try_get("/login").await.is_some()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mistake_in_a_file_at_the_start_is_503_until_it_is_good() {
    let cell = Cell::shared();
    let _redis = cell.redis(&[]).await;
    let accounts = Accounts::new(&cell);
    std::fs::write(accounts.files()[0], "sue:boss:*\n").expect("write the users");
    let console = ConsoleServer::start(&cell, &accounts.settings()).await;
    for path in ["/", "/login", "/api/v1/dead"] {
        assert_eq!(console.nobody().get(path).await.status, 503, "{path}");
    }
    assert!(console.output().contains("is no role"), "{}", console.output());
    std::fs::write(accounts.files()[0], "").expect("write the users");
    stories::until::until("the file is read", SOON, async || {
        console.nobody().get("/login").await.status == 200
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn filters_with_odd_letters_reach_the_cell_as_they_were_typed() {
    let office = ConsoleCell::start(Cell::shared(), &[]).await;
    let otto = office.console.login("otto").await;
    let odd = "a&b=c+d %41\u{e9}<\"'>.myshopify.com";
    let fields = [("consumer", "http"), ("shop", odd)];
    let answer = otto.submit("/lanes", "/lanes/pause", &fields).await;
    assert_eq!(answer.status, 303, "{}", answer.text());
    let pauses = office.pauses().await;
    assert!(pauses.len() == 1 && pauses[0].contains("a&b=c+d %41\u{e9}"), "{pauses:?}");
    let path = format!("/api/v1/lanes?shop={}", percent(odd));
    assert_eq!(otto.json(&path).await["lanes"], json!([]));
}

/// Permissions of a rule for the console, from its keys on.
fn permissions(rule: &str) -> Vec<&str> {
    let words = rule.split_whitespace().filter(|word| *word != "\\");
    let words = words.skip_while(|word| *word != "resetkeys");
    words.take_while(|word| !["END", "```"].contains(word)).collect()
}

/// Words of the ACL rule that docs/redis.md gives for the console. The file of users there has the same.
fn documented_rule() -> Vec<String> {
    let page = std::fs::read_to_string(stories::binaries::repository().join("docs/redis.md"));
    let page = page.expect("docs/redis.md");
    let (_, rest) = page.split_once("ACL SETUSER spillway-console").expect("the page has the rule");
    let (_, file) = page.split_once("\nuser spillway-console on ").expect("the page has the file");
    assert_eq!(permissions(file), permissions(rest));
    let (rule, _) = rest.split_once("```").expect("it ends");
    let rule = rule.replace("a-long-password", "hush").replace('\\', " ");
    let words = ["ACL", "SETUSER", "spillway-console"].into_iter().chain(rule.split_whitespace());
    words.map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_user_of_its_own_is_enough_for_the_console_and_reads_no_secrets() {
    let office = ConsoleCell::start(Cell::shared(), &[]).await;
    office.bury(1, 2).await;
    let rule = documented_rule();
    let words: Vec<&str> = rule.iter().map(String::as_str).collect();
    office.redis.command::<String>(&words).await;
    let dry = ["ACL", "DRYRUN", "spillway-console"];
    for denied in [
        &["CONFIG", "GET", "requirepass"][..],
        &["ACL", "LIST"],
        &["FLUSHALL"],
        &["DEBUG", "SLEEP", "0"],
        &["MODULE", "LIST"],
        &["REPLICAOF", "NO", "ONE"],
        &["GET", "a-key-of-somebody-else"],
    ] {
        let told: String = office.redis.command(&[&dry[..], denied].concat()).await;
        assert_ne!(told, "OK", "{denied:?} is allowed");
    }
    let password = office.cell.directory().join("password");
    std::fs::write(&password, "hush\n").expect("write the password");
    let url = format!("{}?user=spillway-console", office.cell.redis_url());
    let own = [
        ("REDIS_URL", url.as_str()),
        ("REDIS_PASSWORD_FILE", password.to_str().expect("a plain path")),
    ];
    let all = [&office.accounts.settings()[..], &own].concat();
    let console = ConsoleServer::start(&office.cell, &all).await;
    let ada = console.program(office.token("ada"));
    for view in ["/", "/lanes", "/webhooks", "/dead", "/shops", "/gaps", "/audit", "/doctor"] {
        ada.page(view).await;
    }
    let selection = json!({ "shop": shop::domain(1) });
    let paused = ada.post("/api/v1/consumers/http/pause", &json!({ "selection": selection })).await;
    assert_eq!(paused.status, 200, "{}", paused.text());
    let body = json!({ "selection": selection, "expected": 2 });
    let dropped = ada.post("/api/v1/consumers/http/dead/drop", &body).await;
    let job: serde_json::Value = serde_json::from_slice(&dropped.body).expect("JSON");
    let job = ada.job_over(job["id"].as_u64().expect("a number")).await;
    assert_eq!(job["phase"], "done", "{job}");
    assert!(!console.output().contains("NOPERM"), "{}", console.output());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_that_waits_is_dropped_before_a_consumer_ran() {
    let cell = Cell::shared();
    let _redis = cell.redis(&[]).await;
    let accounts = Accounts::new(&cell);
    let token = accounts.add_token("ada-program", "admin", false).await;
    let console = ConsoleServer::start(&cell, &accounts.settings()).await;
    let ada = console.program(&token);
    let body = json!({ "selection": { "shop": shop::domain(1) } });
    let answer = ada.post("/api/v1/consumers/http/drop", &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let job: serde_json::Value = serde_json::from_slice(&answer.body).expect("JSON");
    let job = ada.job_over(job["id"].as_u64().expect("a number")).await;
    let reason = job["phase"]["failed"].to_string();
    assert!(reason.contains("spillway consumers add http"), "{job}");
}
