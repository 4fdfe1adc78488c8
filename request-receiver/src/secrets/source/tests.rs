//! Settings of the source, its start, and what it checks without waiting.

use http::HeaderMap;
use http::uri::PathAndQuery;

use super::*;
use crate::secrets::settings::SecretSettings;
use crate::secrets::{ClientSecrets, ShardSecrets};

fn settings(url: &str, token_file: Option<PathBuf>) -> SourceSettings {
    let rules = CacheRules {
        ttl: Duration::from_secs(60),
        stale_max: Duration::ZERO,
        lookups_a_second: 1.0,
        shops_max: 1,
        together: Duration::from_millis(5),
        is_early: true,
    };
    SourceSettings { url: url.to_owned(), token_file, rules }
}

fn webhook(shop: &'static str, body: Vec<u8>) -> Webhook {
    let mut headers = HeaderMap::new();
    headers.insert("x-shopify-shop-domain", HeaderValue::from_static(shop));
    let target = PathAndQuery::from_static("/webhooks");
    Webhook { received_at_ms: 0, target, headers, body: body.into() }
}

#[tokio::test]
async fn a_mistake_at_start_is_an_error_and_no_panic() {
    let file = tempfile::NamedTempFile::new().expect("create a file");
    std::fs::write(file.path(), "one\ntwo").expect("write the token");
    let settings = settings("http://a/{shop}", Some(file.path().to_owned()));
    let started = SecretSource::start(settings, &Registry::new(), &Background::default());
    assert!(started.expect_err("two tokens").to_string().contains("must hold one line"));
}

#[tokio::test]
async fn known_secrets_check_what_is_not_large_and_any_other_way_of_writing_looks_them_up() {
    let settings = settings("http://a/{shop}", None);
    let source = SecretSource::new(settings, &Registry::new(), Handle::current());
    let source = Arc::new(source.expect("right settings"));
    let shop = "one.myshopify.com";
    source.cache().ask(shop, Duration::ZERO);
    let secrets = Secrets::new(&[Zeroizing::new("secret".to_owned())]);
    source.cache().looked_up(shop, Looked::Found(secrets), Duration::ZERO);
    let copies = SecretCopies::default();
    let tried = |shop, bytes| {
        let forged = webhook(shop, vec![b' '; bytes]);
        source.verify_by_known(&forged, &copies, source.now()).expect_err("it is not signed")
    };
    assert_eq!(tried(shop, HASHED_AT_ONCE_BYTES_MAX), Some(Duration::ZERO));
    assert_eq!(tried(shop, HASHED_AT_ONCE_BYTES_MAX + 1), None, "it would hold others up");
    assert_eq!(tried("One.myshopify.com", 1), None);
    assert_eq!(tried("two.myshopify.com", 1), None);
}

#[tokio::test]
async fn only_what_is_signed_keeps_a_shop_fresh() {
    let shop = "one.myshopify.com";
    let key = [Zeroizing::new("secret".to_owned())];
    let looked_up = || {
        let settings = settings("http://127.0.0.1:1/{shop}", None);
        let source = SecretSource::new(settings, &Registry::new(), Handle::current());
        let source = Arc::new(source.expect("right settings"));
        source.cache().ask(shop, Duration::ZERO);
        source.cache().looked_up(shop, Looked::Found(Secrets::new(&key)), Duration::ZERO);
        source
    };
    let forged = webhook(shop, Vec::from(b"{}"));
    let mut signed = forged.clone();
    let signature = Secrets::new(&key).sign(b"{}").parse().expect("a header value");
    signed.headers.insert("x-shopify-hmac-sha256", signature);
    for (sent, is_used) in [(&forged, false), (&signed, true)] {
        // By the timer, and by a webhook that comes after it.
        let source = looked_up();
        let copies = SecretCopies::default();
        let due = source.cache().next_due().expect("it is scheduled");
        assert_eq!(source.verify_by_known(sent, &copies, due / 2).is_ok(), is_used);
        assert_eq!(!source.cache().due(due).is_empty(), is_used, "by the timer");
        let (source, copies) = (looked_up(), SecretCopies::default());
        assert!(source.cache().due(due).is_empty(), "not used yet");
        assert_eq!(source.verify_by_known(sent, &copies, due).is_ok(), is_used);
        let known = source.cache().ask_known(shop, due).expect("it is known");
        assert_eq!(!known.is_due, is_used, "a lookup is under way");
        assert_eq!(source.metrics.stale.get(), 0, "the endpoint does not fail");
    }
}

#[tokio::test]
async fn a_copy_serves_its_shop_until_the_source_names_other_secrets() {
    let [one, two] = ["one.myshopify.com", "two.myshopify.com"];
    let [old, new] = ["old", "new"].map(|text| Secrets::new(&[Zeroizing::new(text.to_owned())]));
    let sent = |(shop, secrets): (&'static str, &Secrets)| {
        let mut webhook = webhook(shop, Vec::from(b"{}"));
        let signature = secrets.sign(b"{}").parse().expect("a header value");
        webhook.headers.insert("x-shopify-hmac-sha256", signature);
        webhook
    };
    let settings = settings("http://127.0.0.1:1/{shop}", None);
    let source = SecretSource::new(settings, &Registry::new(), Handle::current());
    let source = Arc::new(source.expect("right settings"));
    let [signed, rotated, other] = [(one, &old), (one, &new), (two, &old)].map(sent);
    source.cache().ask(one, Duration::ZERO);
    source.cache().looked_up(one, Looked::Found(old), Duration::ZERO);
    let copies = SecretCopies::default();
    let tries = |webhook, at| source.verify_by_known(webhook, &copies, at).map(|_| ());
    let at = Duration::from_millis(100);
    assert_eq!(tries(&rotated, at), Err(Some(Duration::ZERO)));
    assert!(copies.serving(one, at).is_none(), "it has verified nothing");
    assert_eq!(tries(&signed, at), Ok(()));
    assert!(copies.serving(one, at).is_some());
    assert_eq!(tries(&signed, at), Ok(()));
    assert_eq!(tries(&rotated, at), Err(Some(Duration::ZERO)), "asked at that time");
    assert_eq!(tries(&other, at), Err(None), "of another shop");
    let asked = source.cache().ask_again(one, Duration::ZERO, at, at);
    assert!(asked.begins.is_some());
    source.cache().looked_up(one, Looked::Found(new), at * 2);
    assert_eq!(tries(&signed, at * 3), Err(Some(at)), "revoked");
    assert_eq!(tries(&rotated, at * 3), Ok(()));
    assert!(copies.serving(one, at * 3).is_some(), "in place of the old copy");
}

#[tokio::test(start_paused = true)]
async fn a_shard_that_is_idle_drops_replaced_secrets() {
    let shop = "one.myshopify.com";
    let key = [Zeroizing::new("secret".to_owned())];
    let settings = settings("http://127.0.0.1:1/{shop}", None);
    let source = SecretSource::new(settings, &Registry::new(), Handle::current());
    let source = Arc::new(source.expect("right settings"));
    let secrets = ClientSecrets::new(SecretSettings::default(), Some(source.clone()));
    let secrets = ShardSecrets::new(Arc::new(secrets.expect("random numbers")));
    source.cache().ask(shop, source.now());
    source.cache().looked_up(shop, Looked::Found(Secrets::new(&key)), source.now());
    let mut signed = webhook(shop, Vec::from(b"{}"));
    let signature = Secrets::new(&key).sign(b"{}").parse().expect("a header value");
    signed.headers.insert("x-shopify-hmac-sha256", signature);
    assert!(secrets.verify(&signed, Instant::now()).await.is_ok());
    tokio::time::advance(Duration::from_secs(10)).await;
    secrets.sweep();
    assert_eq!(secrets.copies.len(), 1);
    let tried = source.cache().ask_known(shop, source.now()).expect("it is known").asked;
    source.cache().ask_again(shop, tried, source.now(), source.now());
    source.cache().looked_up(shop, Looked::Unknown, source.now());
    tokio::time::advance(Duration::from_secs(10)).await;
    secrets.sweep();
    assert_eq!(secrets.copies.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_stranger_s_lookup_whose_turn_comes_late_is_not_asked() {
    let settings = settings("http://127.0.0.1:1/{shop}", None);
    let source = SecretSource::new(settings, &Registry::new(), Handle::current());
    let source = source.expect("right settings");
    let all = u32::try_from(STRANGERS_MAX).expect("a small number");
    let turns = source.stranger_turns.acquire_many(all).await.expect("it is never closed");
    let freed = async {
        tokio::time::sleep(LOOKUP_TIMEOUT * 3 / 4).await;
        drop(turns);
    };
    let shops = [Arc::from("one.myshopify.com")];
    let (looked, ()) = tokio::join!(source.looked(&shops, LookupCause::Stranger), freed);
    assert!(matches!(looked.as_deref(), Ok([Looked::NotAsked])), "{looked:?}");
}

#[test]
fn a_token_is_one_line_and_is_not_printed() {
    let file = tempfile::NamedTempFile::new().expect("create a file");
    let settings = settings("http://a/{shop}", Some(file.path().to_owned()));
    std::fs::write(file.path(), "letter\n").expect("write the token");
    let token = settings.read_token().expect("it is right").expect("there is one");
    assert_eq!(token, "Bearer letter");
    assert!(!format!("{token:?}").contains("letter"));
    for wrong in ["", "one\ntwo", "le\u{1}tter"] {
        std::fs::write(file.path(), wrong).expect("write the token");
        assert!(settings.read_token().is_err(), "{wrong:?}");
    }
}
