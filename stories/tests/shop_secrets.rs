//! Shops with client secrets of their own: who may sign for whom, and the rotation of one secret.

use std::fs;
use std::path::Path;
use std::time::Duration;

use stories::cell::Cell;
use stories::client::post;
use stories::ledger::Event;
use stories::report::say;
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
    let cell = Cell::half();
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
