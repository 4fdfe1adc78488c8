//! The page of all settings, made from what `--help` prints.

const INTRO: &str = "# Settings

Each setting is an environment variable and a flag of the same name: `REDIS_URL`, `--redis-url`. A flag wins over the
environment, and the environment over `--env-file`, which may be given several times: a later file overrides an earlier
one. `--check` validates all settings, reports every mistake at once and exits. `spillway config show` prints them with
their origin. Durations and sizes need a unit, such as `30s`, `72h` or `16MiB`; `30M` could be minutes or months, and is
refused. Flags of `spillway console` leave out `CONSOLE_`; `--receiver`, `--downstreamer` and `--kafka-producer` are the
addresses that it asks. All programs may share an env file: each reads the settings that it has. A variable in it that no program has,
and that differs from a setting in at most two letters, is reported with a warning.

Sizes are powers of 1024: `64KiB`, `16MiB`, `10GiB`, `1TiB`. `16m`, `16MB` and the like are refused, because programs
read them differently. nginx reads `16m` as 16 MiB. redis.conf reads `16m` as 16,000,000 bytes, and `16mb` as 16 MiB.
So `client_max_body_size 16m` of nginx is `16MiB` here, and `maxmemory 1gb` of Redis is `1GiB`.

`REDIS_MAXMEMORY` is in no table, because none of these programs reads it. The package's `spillway-redis.service` and
compose.yaml start Redis with it as `maxmemory` (default `1gb`). So its units are those of redis.conf: `21gb` is 21 GiB,
`21g` is 21,000,000,000 bytes, and `21GiB` is refused ([install.md](install.md#memory-of-redis)).

This page is made from `--help`: `UPDATE=1 cargo run -p xtask -- pages` writes it.
";

/// One setting of one program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Name of its environment variable.
    pub name: String,
    about: String,
    default: String,
    /// The text in square brackets, such as `1s to 365d`; empty if it has no range.
    pub range: String,
}

/// Makes the page from the `--help` of each program and of `spillway console`. Settings that all programs
/// have, with the same text, come first. Those of the console are all in its own section.
#[must_use]
pub fn page(programs: &[(&str, String)], console: &str) -> String {
    let all: Vec<(&str, Vec<Setting>)> =
        programs.iter().map(|(name, help)| (*name, settings(help))).collect();
    let is_common = |setting: &Setting| all.iter().all(|(_, of)| of.contains(setting));
    let mut page = INTRO.to_owned();
    let first = all.first().map_or(&[][..], |(_, of)| of);
    let common = first.iter().filter(|setting| is_common(setting));
    section(&mut page, "All processes except the console", common);
    for (name, of) in &all {
        section(&mut page, name, of.iter().filter(|setting| !is_common(setting)));
    }
    section(&mut page, "spillway console", settings(console).iter());
    page
}

fn section<'a>(page: &mut String, title: &str, settings: impl Iterator<Item = &'a Setting>) {
    page.push_str(&format!("\n## {title}\n\n"));
    page.push_str("| setting | default | range | meaning |\n|---|---|---|---|\n");
    for setting in settings {
        let Setting { name, about, default, range } = setting;
        page.push_str(&format!("| `{name}` | {} | {range} | {about} |\n", code(default)));
    }
}

fn code(value: &str) -> String {
    if value.is_empty() { String::new() } else { format!("`{value}`") }
}

/// Settings in the order of the help; flags without a variable are left out.
#[must_use]
pub fn settings(help: &str) -> Vec<Setting> {
    let (_, options) = help.split_once("Options:\n").expect("a list of options");
    let mut found: Vec<String> = Vec::new();
    for line in options.lines() {
        if line.trim_start().starts_with('-') && !line.starts_with("          ") {
            found.push(String::new());
        } else if let Some(text) = found.last_mut() {
            text.push(' ');
            text.push_str(line.trim());
        }
    }
    found.iter().filter_map(|text| setting(text.trim())).collect()
}

fn setting(text: &str) -> Option<Setting> {
    let mut about = text.to_owned();
    let mut taken = |opening: &str| {
        let start = about.find(opening)?;
        let end = start + about[start..].find(']')?;
        let value = about[start + opening.len()..end].trim().to_owned();
        about.replace_range(start..=end, "");
        Some(value)
    };
    let name = taken("[env: ")?;
    let default = taken("[default: ").unwrap_or_default();
    let range = taken("[").unwrap_or_default();
    let name = name.trim_end_matches('=').to_owned();
    let about = about.trim().replace('|', "\\|");
    Some(Setting { name, about, default, range })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_read_from_the_help() {
        let help = "Usage: x\n\nOptions:\n      --max-age <MAX_AGE>\n          Age that a webhook\n          \
                    may have [1s to 365d] [env: MAX_AGE=]\n          [default: 72h]\n      --check\n          \
                    Check\n";
        let expected = Setting {
            name: "MAX_AGE".to_owned(),
            about: "Age that a webhook may have".to_owned(),
            default: "72h".to_owned(),
            range: "1s to 365d".to_owned(),
        };
        assert_eq!(settings(help), [expected]);
    }
}
