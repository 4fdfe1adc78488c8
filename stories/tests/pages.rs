//! The pages are consistent: every link has a target, and every setting, flag and command exists in
//! the binaries.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use stories::binaries::{self, repository};
use stories::page::{blocks, links};
use stories::settings_page;

const BINARIES: [&str; 5] =
    ["request-receiver", "downstreamer", "kafka_producer", "archiver", "spillway"];

#[test]
fn every_link_leads_to_a_file_and_a_heading_that_are_there() {
    let mut broken = Vec::new();
    for page in pages() {
        let text = read(&page);
        for link in links(&text) {
            let (file, heading) = link.split_once('#').unwrap_or((&link, ""));
            let target = match file {
                "" => page.clone(),
                file => page.parent().expect("a page lies somewhere").join(file),
            };
            let is_found = target.exists()
                && (heading.is_empty() || headings(&read(&target)).contains(heading));
            if !is_found {
                broken.push(format!("{}: {link}", name(&page)));
            }
        }
    }
    assert!(broken.is_empty(), "links that lead nowhere: {broken:#?}");
}

#[test]
fn every_setting_on_a_page_is_one_of_a_binary_or_of_a_script() {
    let known = known_settings();
    let mut unknown = BTreeSet::new();
    for page in pages() {
        for setting in code(&read(&page)).iter().flat_map(|code| settings(code)) {
            if !known.contains(&setting) {
                unknown.insert(format!("{}: {setting}", name(&page)));
            }
        }
    }
    assert!(unknown.is_empty(), "settings that nothing has: {unknown:#?}");
}

#[test]
fn every_file_of_the_settings_on_a_page_is_one_of_the_packages() {
    let ops = tracked().into_iter().filter(|file| file.starts_with("ops/"));
    let known: BTreeSet<String> =
        ops.flat_map(|file| settings_files(&read(&repository().join(file)))).collect();
    let mut unknown = BTreeSet::new();
    for page in pages() {
        for file in settings_files(&read(&page)) {
            // A file next to a known one, such as `client-secret-old`.
            let is_known = known.iter().any(|known| {
                file.strip_prefix(known)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
            });
            if !is_known {
                unknown.insert(format!("{}: {SETTINGS}{file}", name(&page)));
            }
        }
    }
    assert!(unknown.is_empty(), "files that nothing has: {unknown:#?}");
}

#[test]
fn every_command_on_a_page_is_taken_by_its_binary() {
    let mut helps = HashMap::new();
    let mut wrong = BTreeSet::new();
    for page in pages() {
        for command in code(&read(&page)).iter().flat_map(|code| commands(code)) {
            if let Some(problem) = problem(&command, &mut helps) {
                wrong.insert(format!("{}: `{}`: {problem}", name(&page), command.join(" ")));
            }
        }
    }
    assert!(wrong.is_empty(), "commands that would be refused: {wrong:#?}");
}

#[test]
fn the_page_of_settings_is_what_the_help_prints() {
    let servers = ["request-receiver", "downstreamer", "kafka_producer", "archiver"];
    let console = help("spillway", &["console"]);
    let made = settings_page::page(&servers.map(|name| (name, help(name, &[]))), &console);
    let path = repository().join("docs/settings.md");
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, &made).expect("write the page");
    }
    assert!(
        fs::read_to_string(path).is_ok_and(|page| page == made),
        "docs/settings.md is old; write it with: UPDATE=1 cargo run -p xtask -- pages"
    );
}

#[test]
fn the_sizes_on_the_page_are_what_the_measured_figures_give() {
    let checked = Command::new(repository().join("bench/sizing.py")).arg("--check").output();
    let checked = checked.expect("python3 is missing; install it with: apt-get install python3");
    let found = [checked.stdout, checked.stderr].concat();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&found));
}

#[test]
fn every_source_file_on_a_page_is_there() {
    let tracked = tracked();
    let is_source = |code: &str| {
        let endings = [".rs", ".lua", ".py", ".yml"];
        endings.iter().any(|ending| code.ends_with(ending))
            && code.chars().all(|c| c.is_ascii_alphanumeric() || "_-./".contains(c))
    };
    let is_there =
        |name: &str| tracked.iter().any(|file| file == name || file.ends_with(&format!("/{name}")));
    let mut gone = BTreeSet::new();
    for page in pages() {
        for code in code(&read(&page)).into_iter().filter(|code| is_source(code)) {
            if !is_there(&code) {
                gone.insert(format!("{}: {code}", name(&page)));
            }
        }
    }
    assert!(gone.is_empty(), "source files that are gone: {gone:#?}");
}

#[test]
fn every_metric_on_a_page_is_one_of_a_process() {
    let is_code = |file: &String| file.ends_with(".rs") || file.ends_with("recording.yml");
    let sources = tracked().into_iter().filter(is_code);
    let sources = sources.filter_map(|file| fs::read_to_string(repository().join(file)).ok());
    let known: BTreeSet<String> = sources.flat_map(|text| metrics(&text)).collect();
    let mut unknown = BTreeSet::new();
    // The changelog also names those that are gone.
    for page in pages().into_iter().filter(|page| name(page) != "CHANGELOG.md") {
        for metric in code(&read(&page)).iter().flat_map(|code| metrics(code)) {
            let suffixes = ["_bucket", "_count", "_sum"];
            let base = suffixes.iter().find_map(|suffix| metric.strip_suffix(suffix));
            if !known.contains(&metric) && !base.is_some_and(|base| known.contains(base)) {
                unknown.insert(format!("{}: {metric}", name(&page)));
            }
        }
    }
    assert!(unknown.is_empty(), "metrics that no process has: {unknown:#?}");
}

/// Names in the form of a metric of ours.
fn metrics(text: &str) -> Vec<String> {
    let is_letter =
        |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | ':');
    let words = text.split(|c: char| !is_letter(c));
    // What a digit follows is a version, in the name of a package or an image.
    let is_metric = |word: &&str| {
        let own = word.strip_prefix("spillway").and_then(|rest| rest.strip_prefix(['_', ':']));
        own.is_some_and(|own| own.starts_with(|c: char| c.is_ascii_lowercase()))
            && !word.ends_with(['_', ':'])
    };
    words.filter(is_metric).map(str::to_owned).collect()
}

/// README.md and similar pages, and all of docs/.
fn pages() -> Vec<PathBuf> {
    let markdown = |directory: PathBuf| -> Vec<PathBuf> {
        let entries = fs::read_dir(directory).expect("read a directory");
        let paths = entries.map(|entry| entry.expect("an entry").path());
        paths.filter(|path| path.extension().is_some_and(|ending| ending == "md")).collect()
    };
    let root = repository();
    let places = ["", "docs", "docs/alerts", "docs/adr"].map(|place| markdown(root.join(place)));
    let mut pages = places.concat();
    pages.push(root.join("bench/README.md"));
    pages.sort();
    pages
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn name(page: &Path) -> String {
    page.strip_prefix(repository()).unwrap_or(page).display().to_string()
}

/// Headings in the form used in links.
fn headings(text: &str) -> BTreeSet<String> {
    let lines = text.lines().filter(|line| line.starts_with('#'));
    let anchor = |line: &str| -> String {
        let kept = line.trim_start_matches('#').trim().to_lowercase();
        let kept = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    lines.map(anchor).collect()
}

/// Code on a page: shell blocks, plain blocks, and text between backticks.
fn code(text: &str) -> Vec<String> {
    let is_shell = |language: &str| matches!(language, "" | "sh" | "bash" | "console");
    let blocks = blocks(text).into_iter().filter(|block| is_shell(&block.language));
    let mut code: Vec<String> = blocks.map(|block| block.text).collect();
    let outside: Vec<&str> = text.split("```").step_by(2).collect();
    for prose in outside {
        code.extend(prose.split('`').skip(1).step_by(2).map(str::to_owned));
    }
    code
}

/// Directories from which a page may call a binary; `/etc/spillway` is a directory of settings.
const PLACES: [&str; 6] =
    ["", "bin/", "target/local/", "target/release/", "/usr/bin/", "/usr/local/bin/"];

/// Placeholders for a name that the reader chooses.
const STANDS_FOR_ANOTHER: [&str; 3] = ["X_FILE", "WEBHOOK_ID", "SPILLWAY_ID"];

/// Names in the form of a setting: two or more words of capitals, such as `MAX_BODY`.
fn settings(code: &str) -> Vec<String> {
    let words = code.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '-'));
    let is_setting = |word: &&str| {
        let parts: Vec<&str> = word.split('_').collect();
        let is_name = |part: &&str| {
            part.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit())
                && part.starts_with(|c: char| c.is_ascii_uppercase())
        };
        parts.len() > 1 && parts.iter().all(is_name) && !STANDS_FOR_ANOTHER.contains(word)
    };
    words.filter(is_setting).map(str::to_owned).collect()
}

/// Settings of the binaries, and all that a script, a unit or a source file reads.
fn known_settings() -> BTreeSet<String> {
    let mut known: BTreeSet<String> = BTreeSet::new();
    for binary in BINARIES {
        known.extend(settings(&help(binary, &[])));
    }
    for subcommand in ["console", "dev", "doctor", "send", "status"] {
        known.extend(settings(&help("spillway", &[subcommand])));
    }
    for file in tracked().into_iter().filter(|file| !file.ends_with(".md")) {
        // Some files are not text, and a file that was just removed is still listed.
        if let Ok(text) = fs::read_to_string(repository().join(file)) {
            known.extend(settings(&text));
        }
    }
    known
}

/// Files of the repository, as listed by git.
fn tracked() -> Vec<String> {
    let listed = Command::new("git").args(["ls-files", "-z"]).current_dir(repository()).output();
    let listed = String::from_utf8(listed.expect("run git").stdout).expect("names are text");
    listed.split('\0').filter(|file| !file.is_empty()).map(str::to_owned).collect()
}

/// Directory of the packages' settings.
const SETTINGS: &str = "/etc/spillway/";

/// Names of files in that directory.
fn settings_files(text: &str) -> BTreeSet<String> {
    let ends = |c: char| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '-'));
    let names = text.split(SETTINGS).skip(1).filter_map(|rest| rest.split(ends).next());
    let names = names.map(|name| name.trim_end_matches('.').to_owned());
    names.filter(|name| !name.is_empty()).collect()
}

/// Calls of our binaries in some code, each as its words.
fn commands(code: &str) -> Vec<Vec<String>> {
    let joined = code.replace("\\\n", " ");
    let lines = joined.lines().map(|line| line.split(" #").next().unwrap_or_default());
    let pieces = lines.flat_map(|line| line.split(['|', ';', '&', '(', ')', '"']));
    let mut calls = Vec::new();
    for piece in pieces {
        let words: Vec<&str> = piece.split_whitespace().collect();
        let is_assignment = |word: &&&str| word.contains('=') && !word.starts_with('-');
        let before = ["$", "sudo", "until", "while", "if", "!", "exec", "watch", "then", "do"];
        let skipped =
            words.iter().take_while(|word| is_assignment(word) || before.contains(*word)).count();
        let Some((program, arguments)) = words[skipped..].split_first() else { continue };
        let is_called =
            |name: &&&str| PLACES.iter().any(|place| program.strip_prefix(place) == Some(**name));
        let Some(program) = BINARIES.iter().find(is_called) else { continue };
        // A name in a sentence, such as `spillway` alone, is not a call.
        if !arguments.is_empty() {
            let words = std::iter::once(*program).chain(arguments.iter().copied());
            calls.push(words.map(str::to_owned).collect());
        }
    }
    calls
}

/// The error that a binary would report for a call, according to its help.
fn problem(command: &[String], helps: &mut HashMap<Vec<String>, String>) -> Option<String> {
    let (binary, rest) = command.split_first().expect("a command has a name");
    let mut path: Vec<&str> = Vec::new();
    for word in rest.iter().take_while(|word| !word.starts_with('-')) {
        let help = known_help(binary, &path, helps);
        let is_sub = help.lines().any(|line| line.trim_start().split(' ').next() == Some(word));
        if !(help.contains("\nCommands:") && is_sub) {
            break;
        }
        path.push(word);
    }
    let help = known_help(binary, &path, helps);
    // `spillway consumers` has a default subcommand.
    let needs_subcommand = help.contains("<COMMAND>");
    if needs_subcommand && !rest.iter().any(|word| word.starts_with('-')) {
        return Some(format!("no subcommand among those of `{binary} {}`", path.join(" ")));
    }
    let flags = rest.iter().filter(|word| word.starts_with("--"));
    let names = flags.map(|flag| flag.split('=').next().unwrap_or_default());
    let names: Vec<String> =
        names.map(|name| name.trim_end_matches([',', '.', '`']).to_owned()).collect();
    let missing = names.into_iter().find(|name| !help.contains(name.as_str()))?;
    Some(format!("no {missing}"))
}

fn known_help(binary: &str, path: &[&str], helps: &mut HashMap<Vec<String>, String>) -> String {
    let key: Vec<String> =
        std::iter::once(binary).chain(path.iter().copied()).map(str::to_owned).collect();
    helps.entry(key).or_insert_with(|| help(binary, path)).clone()
}

fn help(binary: &str, path: &[&str]) -> String {
    let mut command = Command::new(binaries::ours(binary));
    // A setting of the environment would be printed beside its name.
    command.env_clear();
    let output = command.args(path).arg("--help").output().expect("run a binary of ours");
    assert!(output.status.success(), "{binary} {path:?} --help");
    String::from_utf8(output.stdout).expect("help is text")
}
