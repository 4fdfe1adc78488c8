//! Tests of `spillway doctor` and `spillway send` against a backend with a scripted answer.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, StatusCode};
use spillway_webhook::{Secrets, Webhook};
use tokio::net::TcpListener;
use zeroize::Zeroizing;

use crate::cell::{Cell, product};

const SECRET: (&str, &str) = ("SHOPIFY_CLIENT_SECRET", "hush");

type Received = Arc<Mutex<Vec<(HeaderMap, Bytes)>>>;

/// Answers 200 to signed requests, 401 to others.
async fn backend() -> (String, Received) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let received = Received::default();
    let router = Router::new().fallback(take).with_state(received.clone());
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    (url, received)
}

async fn take(State(received): State<Received>, headers: HeaderMap, body: Bytes) -> StatusCode {
    received.lock().unwrap().push((headers.clone(), body.clone()));
    let webhook =
        Webhook { received_at_ms: 0, target: PathAndQuery::from_static("/"), headers, body };
    let secrets = Secrets::new(&[Zeroizing::new(SECRET.1.to_owned())]);
    if secrets.verify(&webhook).is_ok() { StatusCode::OK } else { StatusCode::UNAUTHORIZED }
}

/// Runs the command on another thread, because the backend runs on this one.
async fn run(cell: &Arc<Cell>, arguments: &[&str], settings: &[(&str, &str)]) -> (i32, String) {
    let owned = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    let (cell, arguments) = (cell.clone(), owned(arguments));
    let settings: Vec<_> =
        settings.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    let output = tokio::task::spawn_blocking(move || {
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        let settings: Vec<_> = settings.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        cell.spillway_with(&arguments, &settings)
    });
    let output = output.await.unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(text).unwrap())
}

#[tokio::test]
async fn the_doctor_finds_what_is_wrong_and_says_how_to_fix_it() {
    let cell = Arc::new(Cell::start().await);
    let (code, told) = run(&cell, &["doctor"], &[]).await;
    assert_eq!(code, 1, "{told}");
    assert!(told.contains("problem  no consumer is registered"), "{told}");
    assert!(told.contains("ok       a webhook is on disk before it is answered"), "{told}");
    assert!(told.contains("the backend was not checked"), "{told}");
    let nowhere = ["doctor", "--redis-url", "unix:///nonexistent.sock"];
    let (code, told) = run(&cell, &nowhere, &[]).await;
    assert!(code == 1 && told.contains("redis is unreachable"), "{told}");
}

#[tokio::test]
async fn the_doctor_sees_a_consumer_without_a_leader() {
    let cell = Arc::new(Cell::start().await);
    cell.give_up(&[product(1)], &[0]).await;
    let (code, told) = run(&cell, &["doctor"], &[]).await;
    assert_eq!(code, 1);
    assert!(told.contains("problem  consumer http has no live leader"), "{told}");
    assert!(told.contains("warning  consumer http has 1 dead letter"), "{told}");
}

#[tokio::test]
async fn the_doctor_sees_a_backend_that_is_down_although_the_downstreamer_is_ready() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let admin = listener.local_addr().unwrap().to_string();
    let text = "ready\nbackend_down: no delivery succeeds\na consumer takes no requests\n";
    let router = Router::new().fallback(move || async move { text });
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    let cell = Arc::new(Cell::start().await);
    let (code, told) = run(&cell, &["doctor", "--downstreamer", &admin], &[]).await;
    assert_eq!(code, 1, "{told}");
    assert!(told.contains("problem  the downstreamer at ") && told.contains(": backend_down: "));
}

#[tokio::test]
async fn the_probe_is_signed() {
    let cell = Arc::new(Cell::start().await);
    let (url, received) = backend().await;
    let settings = [SECRET, ("DOWNSTREAM_APP_URL", &url), ("DOWNSTREAM_HOST", "app.example")];
    let (_, told) = run(&cell, &["doctor", "--probe", "/hooks"], &settings).await;
    assert!(told.contains("ok       the backend answered the probe 200"), "{told}");
    assert_eq!(received.lock().unwrap()[0].0["host"], "app.example");
    let no_port = [SECRET, settings[1], ("DOWNSTREAM_HOST", "app.example:99999")];
    let (code, told) = run(&cell, &["doctor", "--probe", "/hooks"], &no_port).await;
    assert!(code == 1 && told.contains("DOWNSTREAM_HOST is not a host"), "{told}");
    let wrong = [("SHOPIFY_CLIENT_SECRET", "other"), settings[1]];
    let (code, told) = run(&cell, &["doctor", "--probe", "/hooks"], &wrong).await;
    assert!(code == 1 && told.contains("answered the probe 401"), "{told}");
    assert!(told.contains("same SHOPIFY_CLIENT_SECRET"), "{told}");
}

#[tokio::test]
async fn a_backend_that_insists_on_tls_is_told_apart_from_one_that_redirects_all() {
    async fn answer(headers: HeaderMap, uri: axum::http::Uri) -> StatusCode {
        let is_tls = headers.get("x-forwarded-proto").is_some_and(|proto| proto == "https");
        if is_tls && uri.path() == "/hooks" { StatusCode::OK } else { StatusCode::FOUND }
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let router = Router::new().fallback(answer);
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    let cell = Arc::new(Cell::start().await);
    let settings = [SECRET, ("DOWNSTREAM_APP_URL", &url)];
    let (_, told) = run(&cell, &["doctor", "--probe", "/hooks"], &settings).await;
    assert!(told.contains("warning  the backend answered the probe 200"), "{told}");
    assert!(told.contains("X-Forwarded-Proto: https"), "{told}");
    let (_, told) = run(&cell, &["doctor", "--probe", "/other"], &settings).await;
    assert!(told.contains("problem  the backend answered the probe 302"), "{told}");
}

#[tokio::test]
async fn what_is_sent_is_signed_and_each_one_differs() {
    let cell = Arc::new(Cell::start().await);
    let (url, received) = backend().await;
    let url = format!("{url}/webhooks?a=1");
    let (code, told) = run(&cell, &["send", "--url", &url], &[SECRET]).await;
    assert_eq!((code, told.as_str()), (0, "200 OK\n"));
    let many = ["send", "--url", &url, "--count", "20", "--topic", "orders/create"];
    let (code, told) = run(&cell, &many, &[SECRET]).await;
    assert!(code == 0 && told.starts_with("20 sent, 20 answered 200"), "{told}");
    {
        let received = received.lock().unwrap();
        let mut ids: Vec<_> =
            received.iter().map(|(h, _)| h["x-shopify-webhook-id"].clone()).collect();
        ids.sort_by_key(|id| id.as_bytes().to_vec());
        ids.dedup();
        assert_eq!(ids.len(), 21);
        assert!(received[0].0.contains_key("x-shopify-product-id"));
        assert!(received[20].0.contains_key("x-shopify-order-id"));
    }
    let (code, told) = run(&cell, &["send", "--url", &url, "--secret", "other"], &[]).await;
    assert!(code == 1 && told.contains("401"), "{told}");
}

#[tokio::test]
async fn a_secret_by_flag_wins_over_both_variables() {
    let cell = Arc::new(Cell::start().await);
    let (url, _) = backend().await;
    let (good, env) = (cell.path("good"), cell.path("spillway.env"));
    std::fs::write(&good, SECRET.1).unwrap();
    std::fs::write(&env, format!("SHOPIFY_CLIENT_SECRET_FILE={}\n", good.display())).unwrap();
    let (good, env) = (good.to_str().unwrap(), env.to_str().unwrap());
    let send = ["send", "--url", &url];
    let (code, told) = run(&cell, &[&send[..], &["--env-file", env]].concat(), &[]).await;
    assert_eq!(code, 0, "{told}");
    let wrong = [&send[..], &["--env-file", env, "--secret", "wrong"]].concat();
    let (code, told) = run(&cell, &wrong, &[]).await;
    assert!(code == 1 && told.contains("401"), "{told}");
    let of_file = [&send[..], &["--secret-file", good]].concat();
    let (code, told) = run(&cell, &of_file, &[("SHOPIFY_CLIENT_SECRET", "wrong")]).await;
    assert_eq!(code, 0, "{told}");
    let both = [&of_file[..], &["--secret", "hush"]].concat();
    assert_eq!(run(&cell, &both, &[]).await.0, 78, "two flags contradict each other");
}

#[tokio::test]
async fn a_receiver_that_does_not_run_is_asked_for() {
    let cell = Arc::new(Cell::start().await);
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("http://{free}/webhooks");
    for count in ["1", "2"] {
        let send = ["send", "--url", &url, "--count", count];
        let (code, told) = run(&cell, &send, &[SECRET]).await;
        let hint = format!("is the receiver running at {free}?");
        assert!(code == 1 && told.contains(&hint), "{told}");
    }
}

#[tokio::test]
async fn a_file_is_sent_byte_for_byte() {
    let cell = Arc::new(Cell::start().await);
    let (url, received) = backend().await;
    std::fs::write(cell.path("body.json"), b"{\"id\":\xff}").unwrap();
    let (code, _) = run(&cell, &["send", "body.json", "--url", &url], &[SECRET]).await;
    assert_eq!(code, 0);
    assert_eq!(received.lock().unwrap()[0].1, &b"{\"id\":\xff}"[..]);
    let (code, told) = run(&cell, &["send", "absent.json", "--url", &url], &[SECRET]).await;
    assert!(code == 1 && told.contains("absent.json"), "{told}");
}
