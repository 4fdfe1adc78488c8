//! Several apps in one receiver: whose a webhook is, who may sign for whom, and what follows from it
//! downstream.

use std::fs;
use std::time::Duration;

use stories::backend::Backend;
use stories::cell::Cell;
use stories::client::post;
use stories::ledger::Event;
use stories::report::say;
use stories::shop;
use stories::until::until;
use stories::webhook::{SECRET, Webhook};

const SOON: Duration = Duration::from_secs(60);
const APPS: u64 = 12;

fn secret(app: u64) -> String {
    format!("secret-of-app-{app}")
}

/// The file. Every third app has a host of its own in place of a path.
fn file(apps: u64) -> String {
    let entry = |app: u64| {
        let place = match app % 3 {
            0 => format!("hosts = [\"app-{app}.example\"]"),
            _ => format!("paths = [\"/app-{app}/*\"]"),
        };
        format!("[[app]]\nname = \"app-{app}\"\n{place}\nsecrets = [\"{}\"]\n\n", secret(app))
    };
    (1..=apps).map(entry).collect()
}

/// A webhook that is sent to an app.
fn to(app: u64, event: Event, secret: &str) -> Webhook {
    let webhook = shop::webhook(1, "products/update", event).signed_with(secret);
    match app % 3 {
        0 => webhook.to(&format!("http://app-{app}.example/hooks")),
        _ => webhook.to(&format!("/app-{app}/hooks")),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_app_is_signed_for_by_its_own_secret_and_named_downstream() {
    let cell = Cell::shared();
    let _redis = cell.redis(&[]).await;
    let apps = cell.directory().join("apps.toml");
    fs::write(&apps, file(APPS)).expect("write the apps");
    let path = apps.to_str().expect("a path in UTF-8");
    let receiver = cell.receiver(&[("APPS_FILE", path)]).await;
    let address = receiver.address();
    let backend = Backend::start().await;
    let downstreamer = cell.downstreamer(&backend, &[]).await;
    let paused = cell.spillway(&["pause", "--app", "app-1"]).await;
    assert!(paused.status.success(), "{paused:?}");
    until("the pause is known", SOON, async || {
        downstreamer.output().contains("changed the controls")
    })
    .await;
    let event = |app: u64, sequence| Event { resource: 100 + app, sequence };
    for app in 1..=APPS {
        for signer in 1..=APPS {
            let answer = post(address, &to(app, event(app, signer), &secret(signer))).await;
            if app == signer {
                answer.expect_stored();
            } else {
                answer.expect(401, "bad_signature");
            }
        }
        // The receiver's own secret is for what is sent to none of them.
        post(address, &to(app, event(app, 99), SECRET)).await.expect(401, "bad_signature");
    }
    let own = shop::webhook(1, "products/update", event(0, 1)).header("Spillway-App", "app-1");
    post(address, &own).await.expect_stored();
    let foreign = shop::webhook(1, "products/update", event(0, 2)).signed_with(&secret(1));
    post(address, &foreign).await.expect(401, "bad_signature");
    // Backends that read `_` as `-` would take this for the name of the app, or of the shop.
    for (name, value) in [("Spillway_App", "app-1"), ("X_Shopify_Shop_Domain", "another")] {
        let disguised = shop::webhook(1, "products/update", event(0, 3)).header(name, value);
        post(address, &disguised).await.expect(400, "not_a_webhook");
    }
    // A claim of another app is replaced.
    let claimed = to(1, event(1, 50), &secret(1)).header("Spillway-App", "app-2");
    post(address, &claimed).await.expect_stored();

    // Only what is for the paused app waits.
    until("the rest is delivered", SOON, async || backend.count() as u64 == APPS).await;
    let listed = cell.spillway(&["queue", "list", "--app", "app-1", "-o", "json"]).await;
    assert_eq!(String::from_utf8_lossy(&listed.stdout).lines().count(), 2);
    let resumed = cell.spillway(&["resume", "--app", "app-1"]).await;
    assert!(resumed.status.success(), "{resumed:?}");
    until("all is delivered", SOON, async || backend.count() as u64 == APPS + 2).await;
    for (at, receipt) in backend.receipts().iter().enumerate() {
        let app = receipt.event().resource - 100;
        let named = receipt.headers.all("Spillway-App");
        match app {
            0 => assert!(named.is_empty(), "{named:?}"),
            app => assert_eq!(named, [format!("app-{app}").as_bytes()]),
        }
        assert_eq!(app == 1, at as u64 >= APPS, "it was paused");
    }
    say(&format!("apps: all pairs of {APPS}, by path and by host"));

    // A mistake changes nothing; then one more app is taken.
    let new = APPS + 1;
    post(address, &to(new, event(new, 1), &secret(new))).await.expect(401, "bad_signature");
    fs::write(&apps, format!("{}[[app]]\nname = \"app-1\"\n", file(new))).expect("write the apps");
    receiver.sighup();
    until("the mistake is logged", SOON, async || receiver.output().contains("is there twice"))
        .await;
    post(address, &to(1, event(1, 60), &secret(1))).await.expect_stored();
    fs::write(&apps, file(new)).expect("write the apps");
    receiver.sighup();
    until("the new app is taken", SOON, async || {
        post(address, &to(new, event(new, 2), &secret(new))).await.status == 200
    })
    .await;
    let name = format!("spillway_app_requests_total{{app=\"app-{new}\",outcome=\"accepted\"}}");
    assert_eq!(receiver.metric(&name).await, Some(1.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_secret_of_its_own_the_receiver_knows_only_the_apps() {
    let cell = Cell::shared();
    let _redis = cell.redis(&[]).await;
    let apps = cell.directory().join("apps.toml");
    fs::write(&apps, file(2)).expect("write the apps");
    let path = apps.to_str().expect("a path in UTF-8");
    let receiver = cell.receiver(&[("APPS_FILE", path), ("SHOPIFY_CLIENT_SECRET", "")]).await;
    let event = Event { resource: 1, sequence: 1 };
    let nowhere = shop::webhook(1, "products/update", event);
    post(receiver.address(), &nowhere).await.expect(404, "unknown_app");
    post(receiver.address(), &to(1, event, &secret(1))).await.expect_stored();
}
