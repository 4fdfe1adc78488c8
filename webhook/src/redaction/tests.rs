//! A person is found wherever the webhook shows them, and another one is not.

use http::{HeaderMap, HeaderName, HeaderValue};
use proptest::prelude::*;
use serde_json::json;

use super::*;

const SHOP: &str = "a.myshopify.com";

fn headers(shop: &str, topic: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in [("x-shopify-shop-domain", shop), ("x-shopify-topic", topic)] {
        if !value.is_empty() {
            let value = HeaderValue::from_str(value).unwrap();
            headers.insert(HeaderName::from_static(name), value);
        }
    }
    headers
}

fn ann() -> Redaction {
    let body = json!({
        "shop_id": 954_889, "shop_domain": SHOP,
        "customer": { "id": 12, "email": "Ann.Lee@example.com", "phone": "+1 (555) 625-1199" },
        "orders_to_redact": [299_938, "280263"],
    });
    let body = body.to_string().into_bytes();
    Redaction::parse(&headers(SHOP, "customers/redact"), &body).unwrap()
}

fn is_found_in(redaction: &Redaction, headers: &HeaderMap, body: &[u8]) -> bool {
    redaction.matched(&mut SearchedWebhook::new(headers, body)).is_some()
}

fn is_in(topic: &str, body: &str) -> bool {
    is_found_in(&ann(), &headers(SHOP, topic), body.as_bytes())
}

#[test]
fn a_redaction_is_read_with_all_that_it_names() {
    let expected = Person {
        id: Some(12),
        email: Some("Ann.Lee@example.com".to_owned()),
        phone: Some("+1 (555) 625-1199".to_owned()),
        orders: vec![299_938, 280_263],
    };
    assert_eq!(ann(), Redaction::of_person(SHOP, expected).unwrap().for_app(None));
    let of_shop = br#"{"shop_id":1,"shop_domain":"b.myshopify.com"}"#;
    let redaction = Redaction::parse(&headers("", "shop/redact"), of_shop).unwrap();
    assert!(redaction.is_of_shop() && redaction.shop() == "b.myshopify.com");
    let parse = |shop: &str, topic: &str, body: &str| {
        Redaction::parse(&headers(shop, topic), body.as_bytes()).map(|_| ())
    };
    assert_eq!(parse(SHOP, "orders/create", "{}"), Err(NotARedaction::Topic));
    assert_eq!(parse(SHOP, "shop/redact", "[]"), Err(NotARedaction::Body));
    assert_eq!(parse("", "shop/redact", "{}"), Err(NotARedaction::NoShop));
    assert_eq!(parse(SHOP, "shop/redact", "{}"), Err(NotARedaction::NoShop), "no header is signed");
    let nobody = format!(
        r#"{{"shop_domain":"{SHOP}","customer":{{"id":0,"email":"","phone":"0000000000"}},"orders_to_redact":[0]}}"#
    );
    assert_eq!(parse(SHOP, "customers/redact", &nobody), Err(NotARedaction::NoPerson));
}

#[test]
fn headers_that_the_signed_body_does_not_confirm_are_refused() {
    let customer = r#""shop_domain":"a.myshopify.com","customer":{"id":12}"#;
    let redact = format!(r#"{{{customer},"orders_to_redact":[]}}"#);
    let request =
        format!(r#"{{{customer},"orders_requested":[1],"data_request":{{"id":1}},"x":[]}}"#);
    let of_shop = r#"{"shop_id":1,"shop_domain":"a.myshopify.com"}"#;
    let parse = |shop: &str, topic: &str, body: &str| {
        Redaction::parse(&headers(shop, topic), body.as_bytes()).map(|_| ())
    };
    assert_eq!(parse("A.MyShopify.com", "customers/redact", &redact), Ok(()));
    assert_eq!(parse("", "shop/redact", of_shop), Ok(()), "the body names it");
    for shop in ["b.myshopify.com", "a.myshopify.com.evil.example"] {
        assert_eq!(parse(shop, "shop/redact", of_shop), Err(NotARedaction::OtherShop));
        assert_eq!(parse(shop, "customers/redact", &redact), Err(NotARedaction::OtherShop));
    }
    for (topic, body) in [
        ("shop/redact", redact.as_str()),
        ("shop/redact", request.as_str()),
        ("customers/redact", request.as_str()),
        ("customers/redact", of_shop),
        ("customers/redact", r#"{"shop_domain":"a.myshopify.com","customer":{"id":12}}"#),
        ("customers/redact", r#"{"shop_domain":"a.myshopify.com","orders_to_redact":[1]}"#),
    ] {
        assert_eq!(parse(SHOP, topic, body), Err(NotARedaction::OtherTopic), "{topic} {body}");
    }
}

#[test]
fn a_redaction_is_of_the_app_that_received_it() {
    let body = format!(r#"{{"shop_domain":"{SHOP}"}}"#);
    let with_app = |app: Option<&'static str>, topic: &str| {
        let mut headers = headers(SHOP, topic);
        if let Some(app) = app {
            headers.insert("spillway-app", HeaderValue::from_static(app));
        }
        headers
    };
    for own in [None, Some("one")] {
        let redact = with_app(own, "shop/redact");
        let redaction = Redaction::parse(&redact, body.as_bytes()).unwrap();
        for other in [None, Some("one"), Some("two")] {
            let is_found = is_found_in(&redaction, &with_app(other, "orders/create"), b"{}");
            assert_eq!(is_found, own == other, "{own:?} {other:?}");
            let again = with_app(other, "shop/redact");
            assert_eq!(redaction.is_repeated_by(&again, body.as_bytes()), own == other);
        }
    }
    let by_hand = Redaction::of_shop(SHOP);
    assert!(is_found_in(&by_hand, &with_app(Some("two"), "orders/create"), b"{}"));
}

#[test]
fn a_text_alone_is_a_weak_sign_and_none_of_another_customer() {
    let matched = |topic: &str, body: &str| {
        ann().matched(&mut SearchedWebhook::new(&headers(SHOP, topic), body.as_bytes()))
    };
    let email = "ann.lee@example.com";
    let only_text = format!(r#"{{"email":"{email}"}}"#);
    assert_eq!(matched("carts/update", &only_text), Some(MatchedBy::Text));
    assert_eq!(matched("customers/update", r#"{"id":12}"#), Some(MatchedBy::Id));
    for (topic, body) in [
        ("customers/update", format!(r#"{{"email":"{email}","id":13}}"#)),
        ("orders/create", format!(r#"{{"email":"{email}","customer":{{"id":13}}}}"#)),
        ("carts/update", r#"{"customer_id":"13","phone":"+15556251199"}"#.to_owned()),
    ] {
        assert_eq!(matched(topic, &body), None, "{body}");
    }
    let nobody = format!(r#"{{"email":"{email}","customer":{{"id":0}}}}"#);
    assert_eq!(matched("orders/create", &nobody), Some(MatchedBy::Text));
    let both =
        format!(r#"{{"email":"{email}","a":{{"customer_id":13}},"b":{{"customer_id":12}}}}"#);
    assert_eq!(matched("orders/create", &both), Some(MatchedBy::Id));
    let person = Person { email: Some(email.to_owned()), ..Person::default() };
    let unknown_id = Redaction::of_person(SHOP, person).unwrap();
    let other = format!(r#"{{"email":"{email}","customer":{{"id":13}}}}"#);
    assert!(is_found_in(&unknown_id, &headers(SHOP, "orders/create"), other.as_bytes()));
}

#[test]
fn placeholders_name_nobody() {
    for (email, phone) in [("none", "123456"), ("@", "0000000000"), ("a@", "+1 111-1111")] {
        let person = Person {
            id: Some(0),
            email: Some(email.to_owned()),
            phone: Some(phone.to_owned()),
            orders: vec![0],
        };
        assert_eq!(Redaction::of_person(SHOP, person), Err(NotARedaction::NoPerson));
    }
    assert!(is_phone("+1 555 625-1199") && is_email("a@b"));
}

#[test]
fn a_redaction_that_was_sent_twice_is_known_by_its_customer() {
    let body = |id: u64, email: &str| {
        format!(
            r#"{{"shop_domain":"{SHOP}","customer":{{"id":{id},"email":"{email}"}},"orders_to_redact":[]}}"#
        )
    };
    let is_repeated =
        |topic: &str, body: &str| ann().is_repeated_by(&headers(SHOP, topic), body.as_bytes());
    assert!(is_repeated("customers/redact", &body(12, "new@example.com")));
    assert!(!is_repeated("customers/redact", &body(13, "ann.lee@example.com")));
    assert!(!is_repeated("customers/update", &body(12, "")));
    assert!(!is_repeated("shop/redact", &format!(r#"{{"shop_domain":"{SHOP}"}}"#)));
}

#[test]
fn the_members_of_each_topic_name_the_customer() {
    for (topic, body) in [
        ("customers/update", r#"{"id":12}"#),
        ("customers/update", r#"{"id":"12"}"#),
        ("customers/data_request", r#"{"customer":{"id":12}}"#),
        ("customers/redact", r#"{"customer":{"id":12}}"#),
        ("customers_marketing_consent/update", r#"{"customer_id":12}"#),
        ("customer.tags_added", r#"{"customerId":"gid://shopify/Customer/12","tags":[]}"#),
        ("orders/create", r#"{"id":1,"customer":{"id":12}}"#),
        ("orders/create", r#"{"id":299938}"#),
        ("draft_orders/update", r#"{"id":5,"order_id":280263}"#),
        ("orders/edited", r#"{"order_edit":{"id":5,"order_id":299938}}"#),
        ("checkouts/update", r#"{"customer":{"default_address":{"customer_id":12}}}"#),
        ("fulfillments/create", r#"{"id":7,"order_id":299938}"#),
        ("refunds/create", r#"{"order_id":"299938"}"#),
        ("order_transactions/create", r#"{"order_id":299938}"#),
        ("returns/approve", r#"{"order":{"id":299938}}"#),
        ("Customer/update", r#"{"query_variables":{"customerId":"gid://shopify/Customer/12"}}"#),
        (
            "Order/update",
            r#"{"fields_changed":{"updated":["order[id: 'gid://shopify/Order/299938'].note"]}}"#,
        ),
        ("products/update", r#"{"note":"see gid://shopify/Customer/12?x=1"}"#),
    ] {
        assert!(is_in(topic, body), "{topic} {body}");
    }
    for (topic, body) in [
        ("products/update", r#"{"id":12}"#),
        ("orders/create", r#"{"id":12}"#),
        ("customers/update", r#"{"id":123}"#),
        ("customers/update", r#"{"id":299938}"#),
        ("customers/update", r#"{"default_address":{"id":12}}"#),
        ("orders/create", r#"{"customer":{"id":"123"}}"#),
        ("orders/create", r#"{"customer":{"default_address":{"id":12}}}"#),
        ("Customer/update", r#"{"query_variables":{"customerId":"gid://shopify/Customer/123"}}"#),
        ("Customer/update", r#"{"x":"gid://shopify/CustomerAddress/12"}"#),
        ("orders/create", r#"{"customer":{"id":12.5}}"#),
    ] {
        assert!(!is_in(topic, body), "{topic} {body}");
    }
}

#[test]
fn address_and_number_are_found_anywhere_and_only_as_a_whole() {
    for text in [
        "ann.lee@example.com",
        "ANN.LEE@EXAMPLE.COM",
        " ann.lee@example.com ",
        "Write to ann.lee@example.com.",
        "<ann.lee@example.com>",
        "+15556251199",
        "15556251199",
        "+1 555 625-1199",
        "call +15556251199 at noon",
    ] {
        let body = json!({ "a": [{ "deep": { "er": text } }] }).to_string();
        assert!(is_in("products/update", &body), "{text}");
        let key = json!({ text: 1 }).to_string();
        assert!(is_in("products/update", &key), "{text} as a name");
    }
    for text in [
        "joann.lee@example.com",
        "x.ann.lee@example.com",
        "ann.lee@example.com.au",
        "ann.lee@example.community",
        "ann@example.com",
        "+15556251190",
        "115556251199",
        "5556251199",
        "155562511990",
    ] {
        let body = json!({ "a": text }).to_string();
        assert!(!is_in("products/update", &body), "{text}");
    }
    // A number is an id of something else.
    assert!(!is_in("products/update", r#"{"id":15556251199}"#));
}

#[test]
fn escapes_are_no_hiding_place() {
    assert!(is_in("carts/update", r#"{"e":"ann.lee\u0040example.com"}"#));
    assert!(is_in("carts/update", r#"{"e":"\u0041nn.lee@example.com"}"#));
    assert!(is_in("carts/update", r#"{"e":"gid:\/\/shopify\/Customer\/12"}"#));
    assert!(is_in("carts/update", r#"{"\u0063ustomer_id":12}"#));
    assert!(is_in("carts/update", "\u{feff}{\"customer_id\":12}"));
}

#[test]
fn a_body_that_is_no_json_is_searched_byte_by_byte() {
    let xml = "<order><email>Ann.Lee@example.com</email></order>";
    assert!(is_in("orders/create", xml));
    assert!(is_in("orders/create", "<order><id type=\"integer\">299938</id></order>"));
    assert!(!is_in("orders/create", "<order><id type=\"integer\">2999380</id></order>"));
    assert!(is_in("orders/create", r#"{"customer":{"email":"ann.lee@example.com"}"#), "cut off");
    let body = b"\xff\xfe ann.lee@example.com \xff";
    assert!(is_found_in(&ann(), &headers(SHOP, "orders/create"), body));
    assert!(ann().is_in_bytes(body) && !ann().is_in_bytes(b"SPWY"));
    assert!(Redaction::of_shop(SHOP).is_in_bytes(b"x-shop: A.myshopify.com"));
}

#[test]
fn only_webhooks_of_the_same_shop_hold_it() {
    let body = br#"{"email":"ann.lee@example.com","shop_domain":"a.myshopify.com"}"#;
    assert!(is_found_in(&ann(), &headers("A.MyShopify.com", "orders/create"), body));
    assert!(!is_found_in(&ann(), &headers("b.myshopify.com", "orders/create"), body));
    assert!(!is_found_in(&ann(), &headers("", "orders/create"), body));
    assert!(is_found_in(&ann(), &headers("", "customers/data_request"), body), "by its body");
    let of_shop = Redaction::of_shop(SHOP);
    assert!(is_found_in(&of_shop, &headers(SHOP, "products/update"), b"{}"));
    assert!(is_found_in(&of_shop, &headers("", "shop/redact"), body));
    assert!(!is_found_in(&of_shop, &headers("b.myshopify.com", "products/update"), b"{}"));
}

#[test]
fn headers_name_the_resource() {
    let with = |name: &'static str, value: &'static str| {
        let mut headers = headers(SHOP, "metafields/update");
        headers.insert(name, HeaderValue::from_static(value));
        is_found_in(&ann(), &headers, b"{}")
    };
    assert!(with("x-shopify-customer-id", "12") && with("x-shopify-order-id", "280263"));
    assert!(!with("x-shopify-customer-id", "123") && !with("x-shopify-product-id", "12"));
}

#[test]
fn what_is_known_in_part_is_searched_by_that_part() {
    let person = Person { id: Some(7), ..Person::default() };
    let redaction = Redaction::of_person(SHOP, person).unwrap();
    let is_in = |body: &[u8]| is_found_in(&redaction, &headers(SHOP, "orders/create"), body);
    assert!(is_in(br#"{"customer":{"id":7}}"#));
    assert!(!is_in(br#"{"customer":{"id":8,"email":"","phone":null}}"#));
    assert_eq!(Redaction::of_person(SHOP, Person::default()), Err(NotARedaction::NoPerson));
}

proptest! {
    #[test]
    fn an_address_is_found_at_any_depth_and_with_any_escape(
        depth in 0usize..20, escaped in prop::collection::vec(any::<bool>(), 19)
    ) {
        let letters = "ann.lee@example.com".chars().zip(escaped);
        let text: String = letters
            .map(|(letter, is_escaped)| match is_escaped {
                true => format!("\\u{:04x}", u32::from(letter)),
                false => letter.to_string(),
            })
            .collect();
        let body = format!("{}\"{text}\"{}", "{\"a\":[".repeat(depth), "]}".repeat(depth));
        prop_assert!(is_in("products/update", &body), "{}", body);
    }

    #[test]
    fn another_number_is_never_the_customer(id in any::<u64>()) {
        let body = format!("{{\"id\":{id}}}");
        prop_assert_eq!(is_in("customers/update", &body), id == 12);
    }

    #[test]
    fn no_bytes_make_it_panic(body in prop::collection::vec(any::<u8>(), 0..300)) {
        is_found_in(&ann(), &headers(SHOP, "orders/create"), &body);
        ann().is_in_bytes(&body);
    }
}
