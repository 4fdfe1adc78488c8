//! Bad settings, and bad data in the queue: a clear error, and nothing is lost.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use stories::backend::Backend;
use stories::cell::{CONCURRENCY, Cell};
use stories::check::check;
use stories::client::post;
use stories::ledger::Ledger;
use stories::load::Load;
use stories::redis_server::RedisServer;
use stories::settings_page;
use stories::until::until;
use stories::webhook::Webhook;

const SECRET_VALUE: &str = "never-print-this-value";
const GOOD: &[(&str, &str)] = &[
    ("REDIS_URL", "unix:///nowhere/redis.sock"),
    ("SHOPIFY_CLIENT_SECRET", SECRET_VALUE),
    ("DOWNSTREAM_APP_URL", "http://127.0.0.1:9/"),
];

#[tokio::test]
async fn a_receiver_names_all_mistakes_at_once() {
    let cell = Cell::shared();
    let bad = [
        ("LISTEN", "nonsense"),
        ("LISTEN_MODE", "rw-rw----"),
        ("LISTEN_GROUP", "no such group"),
        ("ADMIN_LISTEN", "127.0.0.1:99999"),
        ("MAX_BODY", "16"),
        ("MAX_EVENT_AGE", "banana"),
        ("ACK_TIMEOUT", "3"),
        ("MAX_CONNECTIONS", "-1"),
        ("BODY_KINDS", "yaml"),
        ("SHOP_MAX_QUEUED", "101"),
        ("OTEL_TRACES_SAMPLER", "sometimes"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318"),
        ("SHOPIFY_CLIENT_SECRET", SECRET_VALUE),
    ];
    let output = cell.run("request-receiver", &[], &bad).await;
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(78), "{errors}");
    for (key, _) in &bad[..12] {
        assert!(errors.contains(key), "no word of {key} in: {errors}");
    }
    assert!(!errors.contains(SECRET_VALUE), "{errors}");
}

#[tokio::test]
async fn a_downstreamer_names_all_mistakes_at_once() {
    let cell = Cell::shared();
    let bad = [
        ("REDIS_URL", "http://example.com"),
        ("DELIVERY_TIMEOUT", "soon"),
        ("MAX_CONCURRENCY", "0"),
        ("DEAD_STATUSES", "400,abc"),
        ("ORDER_BY", "weather"),
        ("RETRY_FIRST", "1"),
        ("FETCH_PAYLOADS", "maybe"),
        ("PAYLOAD_HOSTS", "*"),
        ("PAYLOAD_MAX", "1"),
    ];
    let output = cell.run("downstreamer", &[], &bad).await;
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(78), "{errors}");
    for (key, _) in &bad {
        assert!(errors.contains(key), "no word of {key} in: {errors}");
    }
    assert!(errors.contains("DOWNSTREAM_APP_URL"), "no word of what is missing: {errors}");
}

#[tokio::test]
async fn a_kafka_producer_names_all_mistakes_at_once() {
    let cell = Cell::shared();
    let properties = cell.directory().join("kafka.properties");
    std::fs::write(&properties, "acks=1\nsasl.jaas.config=hush\n").unwrap();
    let properties = properties.to_str().unwrap();
    let settings = [
        ("KAFKA_URL", "broker"),
        ("KAFKA_TOPIC", "a b"),
        ("KAFKA_KEY", "colour"),
        ("KAFKA_FORMAT", "avro"),
        ("KAFKA_PROPERTIES_FILE", properties),
    ];
    let output = cell.run("kafka_producer", &["--check"], &settings).await;
    assert_eq!(output.status.code(), Some(78));
    let told = String::from_utf8(output.stderr).unwrap();
    for key in ["KAFKA_URL", "KAFKA_TOPIC", "KAFKA_KEY", "KAFKA_FORMAT", "acks", "sasl.username"] {
        assert!(told.contains(key), "{key} is not named:\n{told}");
    }
    assert!(!told.contains("hush"), "{told}");
    let alias = [("KAFKA_BOOTSTRAP_SERVERS", "broker-1:9092,broker-2:9092")];
    assert!(cell.run("kafka_producer", &["--check"], &alias).await.status.success());
}

#[tokio::test]
async fn a_port_that_is_none_is_a_bad_setting() {
    let cell = Cell::shared();
    for port in ["99999", "abc", "0"] {
        let host = format!("app.example:{port}");
        let settings = [GOOD, &[("DOWNSTREAM_HOST", host.as_str())]].concat();
        let output = cell.run("downstreamer", &["--check"], &settings).await;
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(78), "{host}: {told}");
        assert!(told.contains("DOWNSTREAM_HOST") && told.contains("port"), "{host}: {told}");
        let server = format!("broker-1:9092,broker-2:{port}");
        let settings = [("KAFKA_URL", server.as_str())];
        let output = cell.run("kafka_producer", &["--check"], &settings).await;
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(78), "{server}: {told}");
        assert!(told.contains("KAFKA_URL") && told.contains("broker-2"), "{server}: {told}");
    }
}

#[tokio::test]
async fn a_kafka_producer_may_give_up_where_there_is_no_kafka() {
    let cell = Cell::shared();
    let _redis = cell.redis(&[]).await;
    let nobody = stories::port::free().to_string();
    let (redis, admin) = (cell.redis_url(), stories::port::free().to_string());
    let settings = [
        ("REDIS_URL", redis.as_str()),
        ("ADMIN_LISTEN", &admin),
        ("KAFKA_URL", &nobody),
        ("EXIT_IF_UNAVAILABLE", "true"),
    ];
    let output = cell.run("kafka_producer", &[], &settings).await;
    assert_eq!(output.status.code(), Some(69), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("KAFKA_URL"));
}

#[tokio::test]
async fn the_largest_body_must_fit_with_its_headers() {
    let cell = Cell::shared();
    for (in_flight, code) in [("16MiB", 78), ("17MiB", 0)] {
        let settings = [("SHOPIFY_CLIENT_SECRET", SECRET_VALUE), ("MAX_IN_FLIGHT", in_flight)];
        let output = cell.run("request-receiver", &["--check"], &settings).await;
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{errors}");
        assert_eq!(errors.contains("MAX_IN_FLIGHT"), code != 0, "{errors}");
    }
}

#[tokio::test]
async fn a_missing_secret_is_a_bad_setting() {
    let cell = Cell::shared();
    for secret in [&[][..], &[("SHOPIFY_CLIENT_SECRET", " , ")]] {
        let output = cell.run("request-receiver", &["--check"], secret).await;
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(78), "{errors}");
        assert!(errors.contains("SHOPIFY_CLIENT_SECRET"), "{errors}");
    }
}

#[tokio::test]
async fn good_settings_pass_the_check() {
    let cell = Cell::shared();
    for name in ["request-receiver", "downstreamer"] {
        let output = cell.run(name, &["--check"], GOOD).await;
        assert_eq!(output.status.code(), Some(0), "{name}: {output:?}");
    }
}

#[tokio::test]
async fn the_console_checks_its_settings_and_the_files_that_they_name() {
    let cell = Cell::shared();
    let users = cell.directory().join("checked-users");
    let file = users.to_str().unwrap();
    let settings = [GOOD[0], ("CONSOLE_USERS_FILE", file)];
    for (text, code, told) in [
        ("mia:viewer:*\n", 0, "the settings are good"),
        ("mia:boss:*\n", 78, "line 1: mia: \"boss\" is no role"),
    ] {
        std::fs::write(&users, text).unwrap();
        let output = cell.run("spillway", &["console", "--check"], &settings).await;
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        let shown = [output.stdout, output.stderr].concat();
        let shown = String::from_utf8(shown).unwrap();
        assert!(shown.contains(told), "{shown}");
    }
}

#[tokio::test]
async fn an_unknown_flag_is_a_wrong_use() {
    let cell = Cell::shared();
    for name in ["request-receiver", "downstreamer", "spillway"] {
        let output = cell.run(name, &["--no-such-flag"], GOOD).await;
        assert_eq!(output.status.code(), Some(64), "{name}: {output:?}");
    }
}

#[tokio::test]
async fn a_flag_wins_over_the_environment() {
    let cell = Cell::shared();
    let bad = [("SHOPIFY_CLIENT_SECRET", SECRET_VALUE), ("MAX_BODY", "nonsense")];
    let good_flag = ["--max-body", "1MiB", "--check"];
    let output = cell.run("request-receiver", &good_flag, &bad).await;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

#[tokio::test]
async fn a_secret_and_its_file_at_once_are_a_bad_setting() {
    let cell = Cell::shared();
    let path = cell.directory().join("secret");
    std::fs::write(&path, format!("{SECRET_VALUE}\n")).unwrap();
    let file = path.to_str().unwrap();
    let both = [("SHOPIFY_CLIENT_SECRET", SECRET_VALUE), ("SHOPIFY_CLIENT_SECRET_FILE", file)];
    let output = cell.run("request-receiver", &["--check"], &both).await;
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(78), "{errors}");
    assert!(errors.contains("SHOPIFY_CLIENT_SECRET: "), "{errors}");
    assert!(errors.contains("SHOPIFY_CLIENT_SECRET_FILE, not both"), "{errors}");
    assert!(!errors.contains(SECRET_VALUE), "{errors}");
    // A flag and a variable are the same two settings.
    let flag = ["--check", "--shopify-client-secret", SECRET_VALUE];
    let output = cell.run("request-receiver", &flag, &both[1..]).await;
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(78), "{errors}");
    assert!(errors.contains("SHOPIFY_CLIENT_SECRET_FILE, not both"), "{errors}");
    let output = cell.run("request-receiver", &["--check"], &both[1..]).await;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

#[tokio::test]
async fn an_env_file_is_read_as_systemd_reads_it() {
    let cell = Cell::shared();
    let _redis = cell.redis(&[]).await;
    let file = cell.directory().join("receiver.env");
    let text = "; a comment\nMAX_BODY=nonsense\nMAX_BODY=\"1\\\nMiB\"\nSHOPIFY_CLIENT_SECRET=ab$cd\nhush\n";
    std::fs::write(&file, text).unwrap();
    // Without the file it has no secret.
    let mut receiver = cell.receiver_starting(&[("SHOPIFY_CLIENT_SECRET", "")]);
    assert_eq!(receiver.exit(Duration::from_secs(20)).await.code(), Some(78));
    receiver.add_arguments(&["--env-file", file.to_str().unwrap()]);
    receiver.restart();
    receiver.ready().await;
    post(receiver.address(), &Webhook::any().signed_with("ab$cd")).await.expect_stored();
    post(receiver.address(), &Webhook::any().signed_with("ab")).await.expect(401, "bad_signature");
    let log = receiver.output();
    assert!(log.contains("line 6") && !log.contains("hush"), "{log}");
}

#[tokio::test]
async fn of_several_env_files_a_later_one_overrides_an_earlier_one() {
    let cell = Cell::shared();
    let [common, own] = ["common.env", "own.env"].map(|name| cell.directory().join(name));
    std::fs::write(&common, "REDIS_URL=redis://one/0\nLOG_FORMAT=json\n").unwrap();
    std::fs::write(&own, "REDIS_URL=redis://two/0\nMAX_BODY=3MiB\n").unwrap();
    let [common, own] = [&common, &own].map(|path| path.to_str().unwrap());
    let both = ["--env-file", common, "--env-file", own];
    let shown = [&["--show-settings"], &both[..]].concat();
    let output = cell.run("request-receiver", &shown, &[("MAX_BODY", "4MiB")]).await;
    let told = String::from_utf8(output.stdout).unwrap();
    for line in [
        "REDIS_URL\tenv file\tredis://two/0",
        "LOG_FORMAT\tenv file\tjson",
        "MAX_BODY\tenvironment\t4MiB",
    ] {
        assert!(told.lines().any(|one| one == line), "{line} is missing: {told}");
    }
    // On either side of the subcommand, and in either form.
    let sides = ["-e", common, "config", "show", "request-receiver", "--env-file", own];
    for arguments in [sides.to_vec(), [&["config", "show"], &both[..]].concat()] {
        let output = cell.run("spillway", &arguments, &[]).await;
        let told = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && told.contains("redis://two/0"), "{told}");
        assert!(told.contains("json") && told.contains("3MiB"), "{told}");
    }
    let absent = ["--check", "--env-file", "/nonexistent", "--env-file", own];
    let output = cell.run("request-receiver", &absent, &[]).await;
    assert_eq!(output.status.code(), Some(78), "{output:?}");
}

#[tokio::test]
async fn the_settings_in_force_are_shown_with_their_origin_and_without_secrets() {
    let cell = Cell::shared();
    let file = cell.directory().join("shown.env");
    std::fs::write(&file, "MAX_BODY=2MiB\nMAX_IN_FLIGHT=32MiB\nSHOPIFY_CLIENT_SECRET=hush\n")
        .unwrap();
    let file = file.to_str().unwrap();
    let settings = [
        ("MAX_IN_FLIGHT", "64MiB"),
        ("REDIS_URL", "redis://me:hush@host/0"),
        ("MAX_EVENT_AGE", "1x"),
    ];
    let arguments = ["--show-settings", "--env-file", file, "--header-timeout", "2s"];
    let output = cell.run("request-receiver", &arguments, &settings).await;
    let told = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "a mistake is shown, too: {told}");
    for line in [
        "MAX_BODY\tenv file\t2MiB",
        "MAX_IN_FLIGHT\tenvironment\t64MiB",
        "HEADER_TIMEOUT\tflag\t2s",
        "BODY_TIMEOUT\tdefault\t3s",
        "MAX_EVENT_AGE\tenvironment\t1x",
        "SPILL_DIR\tnot set\t",
        "SHOPIFY_CLIENT_SECRET\tenv file\t(hidden)",
        "REDIS_URL\tenvironment\tredis://host/0",
    ] {
        assert!(told.lines().any(|one| one == line), "{line} is missing: {told}");
    }
    assert!(!told.contains("hush"), "{told}");

    let shown = ["config", "show", "--env-file", file, "-o", "json"];
    let output = cell.run("spillway", &shown, &settings).await;
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && !told.contains("hush"), "{told}");
    let settings_of = |process: &str| {
        let lines = told.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        lines.filter(|setting| setting["process"] == process).collect::<Vec<_>>()
    };
    for process in ["request-receiver", "downstreamer", "kafka_producer", "archiver", "console"] {
        let own = settings_of(process);
        let redis = own.iter().find(|setting| setting["setting"] == "REDIS_URL").expect("a URL");
        assert_eq!(
            (&redis["origin"], &redis["value"]),
            (&"environment".into(), &"redis://host/0".into())
        );
    }
    let body = settings_of("request-receiver");
    let body = body.iter().find(|setting| setting["setting"] == "MAX_BODY").expect("a setting");
    assert_eq!(body["origin"], "env file");
    let absent = cell.run("spillway", &["config", "show", "--env-file", "/nonexistent"], &[]).await;
    assert_eq!(absent.status.code(), Some(78), "{absent:?}");
}

#[tokio::test]
async fn a_mistyped_setting_of_an_env_file_is_named_with_the_one_that_was_meant() {
    let cell = Cell::shared();
    let file = cell.directory().join("mistyped.env");
    let text = "MAX_BODYY=hush\nREDIS_URL=unix:///nowhere\nDATABASE_URL=x\nSHOPIFY_CLIENT_SECRET=s\n\
                DOWNSTREAM_APP_URL=discard:\n";
    std::fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();
    let expected = "MAX_BODYY is no setting; did you mean MAX_BODY?";
    for (program, arguments) in [
        ("request-receiver", &["--check"][..]),
        ("downstreamer", &["--check"][..]),
        ("spillway", &["config", "show"][..]),
        ("spillway", &["doctor"][..]),
    ] {
        let output = cell.run(program, &[arguments, &["--env-file", file]].concat(), &[]).await;
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(told.matches("is no setting").count(), 1, "{program}: {told}");
        assert!(told.contains(expected) && !told.contains("hush"), "{program}: {told}");
        if arguments == ["--check"] {
            assert_eq!(output.status.code(), Some(0), "{program}: {told}");
        }
    }
}

#[tokio::test]
async fn the_list_of_settings_holds_those_of_every_program() {
    let cell = Cell::shared();
    for program in ["request-receiver", "downstreamer", "kafka_producer", "archiver"] {
        let output = cell.run(program, &["--show-settings"], &[]).await;
        let shown = String::from_utf8(output.stdout).unwrap();
        let names: Vec<&str> = shown.lines().filter_map(|line| line.split('\t').next()).collect();
        assert!(names.len() > 10, "{program}: {shown}");
        let file = cell.directory().join(format!("{program}.env"));
        let mistyped: String = names.iter().map(|name| format!("{name}X=\n")).collect();
        std::fs::write(&file, mistyped).unwrap();
        let arguments = ["--show-settings", "--env-file", file.to_str().unwrap()];
        let output = cell.run(program, &arguments, &[]).await;
        let told = String::from_utf8(output.stderr).unwrap();
        for name in names {
            let expected = format!("{name}X is no setting; did you mean {name}?");
            assert!(told.contains(&expected), "{program}: {expected}: {told}");
        }
    }
}

/// The value next to a bound, on the outside: `bound` is a number, with a unit or without.
fn outside(bound: &str, is_low: bool) -> Option<String> {
    let digits = bound.find(|c: char| !c.is_ascii_digit()).unwrap_or(bound.len());
    let (number, unit) = bound.split_at(digits);
    let number: u64 = number.parse().expect("a bound begins with a number");
    let below = [("s", "999ms"), ("h", "59m"), ("KiB", "1023B"), ("MiB", "1023KiB"), ("", "0")];
    match (is_low, number) {
        (false, _) => Some(format!("{}{unit}", number + 1)),
        (true, 0) => None,
        (true, 1) => {
            let found = below.iter().find(|(of, _)| *of == unit);
            Some(found.expect("a unit below this one").1.to_owned())
        }
        (true, _) => Some(format!("{}{unit}", number - 1)),
    }
}

#[test]
fn values_outside_of_a_bound_are_next_to_it() {
    assert_eq!(outside("365d", false).as_deref(), Some("366d"));
    assert_eq!(outside("1MiB", true).as_deref(), Some("1023KiB"));
    assert_eq!(outside("100ms", true).as_deref(), Some("99ms"));
    assert_eq!((outside("1", true).as_deref(), outside("0", true)), (Some("0"), None));
}

#[tokio::test]
async fn ranges_of_the_help_are_those_that_are_checked() {
    let cell = Cell::shared();
    for program in ["request-receiver", "downstreamer", "kafka_producer", "archiver"] {
        let help = cell.run(program, &["--help"], &[]).await;
        let settings = settings_page::settings(&String::from_utf8(help.stdout).expect("text"));
        let ranges = settings.into_iter().filter_map(|setting| {
            let range = setting.range.strip_prefix("percent, ").unwrap_or(&setting.range);
            let (low, high) = range.split_once(" to ")?;
            low.starts_with(|c: char| c.is_ascii_digit())
                .then(|| (setting.name, [low.to_owned(), high.to_owned()]))
        });
        let ranges: Vec<_> = ranges.collect();
        assert!(ranges.len() > 2, "{program}: {ranges:?}");
        for (bound, is_low) in [(0, true), (1, false)] {
            let of = |value: &dyn Fn(&str) -> Option<String>| -> Vec<(String, String)> {
                let one = |(name, range): &(String, [String; 2])| {
                    Some((name.clone(), value(&range[bound])?))
                };
                ranges.iter().filter_map(one).collect()
            };
            let good = of(&|bound| Some(bound.to_owned()));
            let said = mistakes(&cell, program, &good).await;
            let is_range =
                |line: &&String| line.contains(" is outside ") || line.contains(" is not a ");
            let refused: Vec<&String> = said.iter().filter(is_range).collect();
            assert!(refused.is_empty(), "{program}: bounds are refused: {refused:?}");
            let bad = of(&|bound| outside(bound, is_low));
            let said = mistakes(&cell, program, &bad).await;
            for (name, value) in &bad {
                let is_named = |line: &String| line.contains(&format!("{name}: "));
                let line = said.iter().find(|line| is_named(line));
                assert!(
                    line.as_ref().is_some_and(is_range),
                    "{program}: {name}={value} is taken: {line:?}"
                );
            }
        }
    }
}

/// Lines that a program prints about its settings.
async fn mistakes(cell: &Cell, program: &str, settings: &[(String, String)]) -> Vec<String> {
    let settings: Vec<_> = settings.iter().map(|(name, value)| (&**name, &**value)).collect();
    let output = cell.run(program, &["--check"], &settings).await;
    String::from_utf8_lossy(&output.stderr).lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn help_names_every_setting_with_its_default() {
    let cell = Cell::shared();
    let output = cell.run("request-receiver", &["--help"], &[]).await;
    let help = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success());
    for word in ["LISTEN", "SHOPIFY_CLIENT_SECRET", "MAX_EVENT_AGE", "72h", "ACK_TIMEOUT", "16MiB"]
    {
        assert!(help.contains(word), "no {word} in: {help}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_corrupt_pack_is_set_aside_whole_and_the_rest_flows() {
    let cell = Cell::shared();
    let redis = cell.redis(&[]).await;
    let backend = Backend::start().await;
    let receiver = cell.receiver(&[]).await;
    let ledger = Arc::new(Ledger::default());
    let load = Load { connections: 2, resources: 10, events: Some(5), ..Load::steady(91) };
    load.start(receiver.address(), &ledger).join().await;
    let mut connection = redis.connection().await.unwrap();
    let garbage: [&[u8]; 3] = [b"\0\x01 not a pack \xff", b"", &[0x5a; 4096]];
    let mut ids = Vec::new();
    for bytes in garbage {
        let mut add = redis::cmd("XADD");
        add.arg("{spillway}:in").arg("*").arg("p").arg(bytes);
        ids.push(add.query_async::<String>(&mut connection).await.unwrap());
    }
    load.start_after(5, receiver.address(), &ledger).join().await;

    let downstreamer = cell.downstreamer(&backend, &[]).await;
    ledger.delivered_to(&backend, Duration::from_secs(30)).await;
    for (id, bytes) in ids.iter().zip(garbage) {
        expect_set_aside(&redis, id, bytes).await;
    }
    until("the stream is empty", Duration::from_secs(20), async || {
        redis.stream_len("{spillway}:in").await == 0
    })
    .await;
    assert!(downstreamer.output().contains("ERROR"), "not a word in the log");
    let figures = check(&ledger, &backend.receipts(), &HashSet::new());
    figures.print("corrupt packs");
    figures.expect_sound(0);
}

/// Good webhooks may be delivered before the bad one is moved.
async fn expect_set_aside(redis: &RedisServer, id: &str, pack: &[u8]) {
    let key = format!("{{spillway}}:corrupt:{id}");
    until(&format!("{key} holds the pack"), Duration::from_secs(20), async || {
        redis.command::<Option<Vec<u8>>>(&["GET", &key]).await.as_deref() == Some(pack)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pack_spoilt_on_the_way_is_set_aside_by_its_checksum() {
    let cell = Cell::shared();
    let redis = cell.redis(&[]).await;
    let backend = Backend::start().await;
    let receiver = cell.receiver(&[]).await;
    post(receiver.address(), &Webhook::any()).await.expect_stored();
    let mut connection = redis.connection().await.unwrap();
    type Entry = (String, Vec<(String, Vec<u8>)>);
    let mut range = redis::cmd("XRANGE");
    let range = range.arg("{spillway}:in").arg("-").arg("+");
    let entries: Vec<Entry> = range.query_async(&mut connection).await.unwrap();
    let (id, fields) = &entries[0];
    let (field, pack) = &fields[0];
    assert_eq!(field, "p");
    // One bit in the middle of a good pack that replaces the first pack.
    let mut spoilt = pack.clone();
    let middle = spoilt.len() / 2;
    spoilt[middle] ^= 0x10;
    let mut add = redis::cmd("XADD");
    add.arg("{spillway}:in").arg("*").arg("p").arg(&spoilt);
    let spoilt_id: String = add.query_async(&mut connection).await.unwrap();
    assert_eq!(redis.command::<u64>(&["XDEL", "{spillway}:in", id]).await, 1);
    post(receiver.address(), &Webhook::any()).await.expect_stored();

    let downstreamer = cell.downstreamer(&backend, &[]).await;
    until("the good one is delivered", Duration::from_secs(20), async || backend.delivered() == 1)
        .await;
    expect_set_aside(&redis, &spoilt_id, &spoilt).await;
    assert!(downstreamer.output().contains("ERROR"), "not a word in the log");
    assert_eq!(backend.count(), 1);
    assert!(backend.in_flight_max() <= CONCURRENCY);
}
