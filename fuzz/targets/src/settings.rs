//! Any flags, env file or properties file.
//!
//! Properties: no panic. An error message never contains a secret. Properties that are written are
//! read back the same.

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use clap::Parser;
use spillway_process::{Checker, ServerArgs};

use crate::properties;

const SECRET: &str = "hush-hush-hush";

/// Runs the target. The first byte selects the kind of settings.
pub fn run(data: &[u8]) {
    let Some((which, rest)) = data.split_first() else { return };
    let Ok(text) = std::str::from_utf8(rest) else { return };
    match which % 5 {
        0 => flags::<request_receiver::settings::ReceiverArgs>(
            &["--shopify-client-secret", SECRET],
            text,
        ),
        1 => flags::<downstreamer::DownstreamerArgs>(&["--downstream-app-url", "discard:"], text),
        2 => env_file(text),
        3 => properties_file(text),
        _ => values(text),
    }
}

/// Parses one flag per line.
fn flags<W: ServerArgs + Parser>(given: &[&str], text: &str) {
    // Files of this machine must not be read.
    let lines = text.lines().filter(|line| !line.contains("file"));
    let flags = ["name"].into_iter().chain(given.iter().copied()).chain(lines);
    let Ok(written) = W::try_parse_from(flags) else { return };
    let mut checker = Checker::default();
    let checked = written.check(&mut checker);
    if let Err(mistakes) = checker.finish(checked) {
        assert!(!mistakes.to_string().contains(SECRET), "{mistakes}");
    }
}

/// Checks that every name and value can be set, and that a quoted value is read back the same.
fn env_file(text: &str) {
    let found = spillway_env_file::parse(text);
    for (name, value) in &found.settings {
        assert!(!name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0'));
    }
    let is_quotable = |(_, value): &&(String, String)| !value.contains('\'');
    let settings: Vec<_> = found.settings.iter().filter(is_quotable).cloned().collect();
    let mut written = String::new();
    for (name, value) in &settings {
        writeln!(written, "{name}='{value}'").expect("a string");
    }
    assert_eq!(spillway_env_file::parse(&written).settings, settings, "{written:?}");
}

fn properties_file(text: &str) {
    let Ok(parsed) = properties::parse(text) else { return };
    let mut written = String::new();
    for (key, value) in &parsed {
        writeln!(written, "{}={}", escaped(key), escaped(value)).expect("a string");
    }
    assert_eq!(properties::parse(&written), Ok(parsed), "{written:?}");
}

/// Escapes every character so that it stands only for itself.
fn escaped(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '\n' => "\\n".to_owned(),
            '\r' => "\\r".to_owned(),
            '\t' => "\\t".to_owned(),
            '\u{c}' => "\\f".to_owned(),
            't' | 'n' | 'r' | 'f' | 'u' => c.to_string(),
            _ => format!("\\{c}"),
        })
        .collect()
}

fn values(text: &str) {
    let mut checker = Checker::default();
    let longest = Duration::from_secs(3600);
    let duration = checker.duration("A", text, Duration::ZERO..=longest);
    assert!(duration <= longest);
    assert!(checker.size("B", text, 16..=1 << 20) <= 1 << 20);
    assert!((1..=9).contains(&checker.number("C", text, 1..=9u16)));
    checker.flag("D", text);
    checker.address("E", text, "127.0.0.1:80");
    let told = checker.secrets("F", Some(SECRET), Some(Path::new("/x")), true);
    assert!(told.is_empty());
    let mistakes = checker.finish(()).expect_err("both are set");
    assert!(!mistakes.to_string().contains(SECRET) || text.contains(SECRET));
    text.parse::<spillway_process::listen::Address>().ok();
}
