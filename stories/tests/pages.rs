//! The pages hold what they say: every link leads somewhere, and every setting, flag and command in
//! them is one of the binaries'.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use stories::binaries::{self, repository};
use stories::page::blocks;

const BINARIES: [&str; 4] = ["request-receiver", "downstreamer", "kafka_producer", "spillway"];

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
            // One kept beside it, such as `client-secret-old`.
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

/// README.md and the like, and all of docs/.
fn pages() -> Vec<PathBuf> {
    let markdown = |directory: PathBuf| -> Vec<PathBuf> {
        let entries = fs::read_dir(directory).expect("read a directory");
        let paths = entries.map(|entry| entry.expect("an entry").path());
        paths.filter(|path| path.extension().is_some_and(|ending| ending == "md")).collect()
    };
    let root = repository();
    let places = ["", "docs", "docs/alerts"].map(|place| markdown(root.join(place)));
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

/// Targets of links to files of the repository.
fn links(text: &str) -> Vec<String> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    let targets = targets.map(|(target, _)| target.to_owned());
    targets
        .filter(|target| !target.contains("://") && !target.contains(char::is_whitespace))
        .collect()
}

/// Headings in the form that links have.
fn headings(text: &str) -> BTreeSet<String> {
    let lines = text.lines().filter(|line| line.starts_with('#'));
    let anchor = |line: &str| -> String {
        let kept = line.trim_start_matches('#').trim().to_lowercase();
        let kept = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    lines.map(anchor).collect()
}

/// What is code on a page: shell and plain blocks, and what stands between backticks.
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

/// Where a page may call a binary; `/etc/spillway` is a directory.
const PLACES: [&str; 4] = ["", "target/release/", "/usr/bin/", "/usr/local/bin/"];

/// What stands for a name of yours.
const STANDS_FOR_ANOTHER: [&str; 2] = ["X_FILE", "WEBHOOK_ID"];

/// Names in the form of a setting: two words of capitals or more, such as `MAX_BODY`.
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

/// The binaries' own, and whatever a script, a unit or a source of ours reads.
fn known_settings() -> BTreeSet<String> {
    let mut known: BTreeSet<String> = BTreeSet::new();
    for binary in BINARIES {
        known.extend(settings(&help(binary, &[])));
    }
    for subcommand in ["dev", "doctor", "send", "status"] {
        known.extend(settings(&help("spillway", &[subcommand])));
    }
    for file in tracked().into_iter().filter(|file| !file.ends_with(".md")) {
        // Not everything is text, and what was just removed is still listed.
        if let Ok(text) = fs::read_to_string(repository().join(file)) {
            known.extend(settings(&text));
        }
    }
    known
}

/// The files of the repository, as git lists them.
fn tracked() -> Vec<String> {
    let listed = Command::new("git").args(["ls-files", "-z"]).current_dir(repository()).output();
    let listed = String::from_utf8(listed.expect("run git").stdout).expect("names are text");
    listed.split('\0').filter(|file| !file.is_empty()).map(str::to_owned).collect()
}

/// Where the packages have their settings.
const SETTINGS: &str = "/etc/spillway/";

/// Names of files there.
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
        // A name in a sentence, such as `spillway` alone, is no call.
        if !arguments.is_empty() {
            let words = std::iter::once(*program).chain(arguments.iter().copied());
            calls.push(words.map(str::to_owned).collect());
        }
    }
    calls
}

/// What a binary would refuse of a call, by what its help knows.
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
    // `spillway drains` has a default of its own.
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
    let output = command.args(path).arg("--help").output().expect("run a binary of ours");
    assert!(output.status.success(), "{binary} {path:?} --help");
    String::from_utf8(output.stdout).expect("help is text")
}
