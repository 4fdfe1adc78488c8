//! Routes, rules and mistakes of a file of apps.

use std::path::Path;

use http::Request;
use prometheus::Opts;
use spillway_webhook::freshness::FreshnessWindow;

use super::*;

const SECOND: std::time::Duration = std::time::Duration::from_secs(1);

fn settings(file: &Path) -> AppSettings {
    let window = FreshnessWindow { age_max: SECOND, skew_max: SECOND, required: false };
    let body_kinds = BodyKinds { json: true, xml: true, any: false };
    AppSettings { file: file.to_owned(), rules: InspectionRules { body_kinds, window } }
}

fn read(text: &str) -> Result<Vec<App>, String> {
    let file = tempfile::NamedTempFile::new().expect("create a file");
    std::fs::write(file.path(), text).expect("write the apps");
    settings(file.path()).read()
}

fn apps(text: &str, has_default: bool) -> Apps {
    let file = tempfile::NamedTempFile::new().expect("create a file");
    std::fs::write(file.path(), text).expect("write the apps");
    let matches = IntCounterVec::new(Opts::new("matches", "-"), &["secret"]).expect("valid");
    Apps::new(settings(file.path()), has_default, matches, &Registry::new()).expect("right")
}

fn route(apps: &Apps, target: &str, host: &str) -> Result<String, Refusal> {
    let request = Request::post(target).header(HOST, host).body(()).expect("well formed");
    let app = apps.route(request.uri(), request.headers())?;
    Ok(app.map_or("-", |app| app.name.to_str().unwrap_or("?").to_owned().leak()).to_owned())
}

const THREE: &str = r#"
    [[app]]
    name = "exact"
    paths = ["/hooks/a", "/other/*"]
    secrets = ["one", "two"]

    [[app]]
    name = "prefix"
    paths = ["/hooks/*"]
    secrets = ["three"]
    body_kinds = "xml"
    max_event_age = "2h"

    [[app]]
    name = "host"
    hosts = ["b.example"]
    secrets = ["four"]
"#;

#[test]
fn the_most_exact_app_is_found() {
    for has_default in [true, false] {
        let apps = apps(THREE, has_default);
        let to = |target: &str, host: &str| route(&apps, target, host);
        assert_eq!(to("/hooks/a", "a.example").as_deref(), Ok("exact"));
        assert_eq!(to("/hooks/a?x=1", "b.example:8080").as_deref(), Ok("exact"));
        assert_eq!(to("/hooks/ab", "a.example").as_deref(), Ok("prefix"));
        assert_eq!(to("/hooks/", "b.example").as_deref(), Ok("prefix"));
        assert_eq!(to("/other/x", "").as_deref(), Ok("exact"));
        assert_eq!(to("/", "B.example:443").as_deref(), Ok("host"));
        assert_eq!(to("http://b.example/", "a.example").as_deref(), Ok("host"));
        let nowhere = to("/", "a.example");
        assert_eq!(nowhere, if has_default { Ok("-".into()) } else { Err(Refusal::UnknownApp) });
    }
}

#[test]
fn of_an_app_with_several_paths_the_best_counts() {
    let apps = apps(
        r#"
        [[app]]
        name = "two"
        paths = ["/a/*", "/a/b/c/*"]
        secrets = ["one"]

        [[app]]
        name = "between"
        paths = ["/a/b/*"]
        secrets = ["two"]
        "#,
        false,
    );
    assert_eq!(route(&apps, "/a/b/c/d", "").as_deref(), Ok("two"));
    assert_eq!(route(&apps, "/a/b/d", "").as_deref(), Ok("between"));
    assert_eq!(route(&apps, "/a/d", "").as_deref(), Ok("two"));
}

#[test]
fn an_app_by_its_host_alone_is_before_one_with_all_paths() {
    let two = r#"
        [[app]]
        name = "all"
        paths = ["/*"]
        secrets = ["one"]

        [[app]]
        name = "host"
        hosts = ["a.example"]
        secrets = ["two"]
    "#;
    let apps = apps(two, false);
    assert_eq!(route(&apps, "/a", "a.example").as_deref(), Ok("host"));
    assert_eq!(route(&apps, "/a", "b.example").as_deref(), Ok("all"));
}

#[test]
fn an_app_has_rules_of_its_own_or_the_receiver_s() {
    let apps = read(THREE).expect("it is right");
    let rules: Vec<_> = apps.iter().map(|app| app.rules).collect();
    assert!(rules[0].body_kinds.json && rules[0].window.age_max == SECOND);
    assert!(!rules[1].body_kinds.json && rules[1].window.age_max == 7200 * SECOND);
    assert_eq!(apps[0].secrets.fingerprints().len(), 2);
}

#[test]
fn every_mistake_is_named_and_no_secret() {
    let wrong = r#"
        [[app]]
        name = "one"
        paths = ["hooks", "/a*b"]
        secrets = ["hush"]
        secret_file = "/nowhere"

        [[app]]
        name = "one"
        paths = ["/same"]
        secret_file = "/nowhere"

        [[app]]
        name = "a space"
        hosts = ["h:1"]
        secrets = [" "]
        body_kinds = "yaml"
        max_event_age = "5"

        [[app]]
        name = "three"
        paths = ["/same"]
        secrets = ["hush"]

        [[app]]
        name = "four"
        secrets = ["hush"]
    "#;
    let mistakes = read(wrong).err().expect("it is wrong");
    for part in [
        r#"app "one" has "hooks", no path"#,
        r#"app "one" has "/a*b", no path"#,
        r#"app "one" needs either secrets or secret_file"#,
        r#"app "one" is there twice"#,
        r#"app "one" cannot read /nowhere"#,
        r#"app "a space" must have a name"#,
        r#"app "a space" has "h:1", no host"#,
        r#"app "a space" needs either secrets"#,
        r#"app "a space" has body_kinds: "yaml""#,
        r#"max_event_age: "5" is not a duration"#,
        r#"app "three" shares /same"#,
        r#"app "four" has a secret of another app"#,
        r#"app "four" needs paths or hosts"#,
    ] {
        assert!(mistakes.contains(part), "{part}: {mistakes}");
    }
    assert!(!mistakes.contains("hush"), "{mistakes}");
    let broken = read("[[app]]\nname = \"x\"\nsecrets = [\"hush\"").err().expect("it is wrong");
    assert!(broken.contains(", line 3: ") && !broken.contains("hush"), "{broken}");
    let unknown = read("[[app]]\nname = \"x\"\nsecret = \"hush\"").err().expect("it is wrong");
    assert!(unknown.contains("unknown field `secret`") && !unknown.contains("hush"), "{unknown}");
    let no_list = read("[[app]]\nname = \"x\"\nsecrets = \"hush\"").err().expect("it is wrong");
    assert!(no_list.contains("line 3") && !no_list.contains("hush"), "{no_list}");
    assert!(read("").err().is_some_and(|mistake| mistake.contains("1 to 200")));
}

#[test]
fn a_name_that_the_sender_claims_is_replaced() {
    let apps = read(THREE).expect("it is right");
    let mut headers = HeaderMap::new();
    headers.append(APP_HEADER, HeaderValue::from_static("claimed"));
    headers.append(APP_HEADER, HeaderValue::from_static("twice"));
    name_app(&mut headers, Some(&apps[1]));
    let named: Vec<_> = headers.get_all(APP_HEADER).iter().collect();
    assert_eq!(named, ["prefix"]);
    name_app(&mut headers, None);
    assert!(headers.is_empty());
}
