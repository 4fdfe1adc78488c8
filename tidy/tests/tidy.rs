//! Every product source keeps to the rules of CONTRIBUTING.md that a program can check.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use tidy::{
    PRODUCT, Source, Struct, bytes_of, circles, imports, opens_badly, repository, sources, tracked,
    unwanted,
};

const FILE_LINES_MAX: usize = 500;
const FUNCTION_LINES_MAX: usize = 60;
const FIELDS_MAX: usize = 12;
const METHODS_MAX: usize = 25;
/// For 1,000 lines of the product: public items, `let (a, b) = (x, y)`, casts by `as`, assertions.
const PUBLIC_MAX: f64 = 25.0;
const TUPLE_LETS_MAX: f64 = 0.3;
const CASTS_MAX: f64 = 2.0;
const ASSERTIONS_MIN: f64 = 1.0;
const TRACKED_MAX: usize = 1_350;
const TRACKED_BYTES_MAX: u64 = 10 << 20;
/// Results are a small part of what is tracked: pages and plots, and no raw samples.
const RESULTS: &str = "bench/results/";
const RESULTS_BYTES_MAX: u64 = 128 << 10;

/// Collects what `rule` finds in each product source, with its path.
fn findings(rule: impl Fn(&Source) -> Vec<String>) -> Vec<String> {
    let all = sources(&PRODUCT);
    assert!(all.len() > 200, "{} sources", all.len());
    let of = |source: &Source| {
        let found = rule(source);
        found.into_iter().map(|text| format!("{}: {text}", source.path)).collect::<Vec<_>>()
    };
    all.iter().flat_map(of).collect()
}

fn assert_none(found: &[String], rule: &str) {
    assert!(found.is_empty(), "{rule}:\n  {}", found.join("\n  "));
}

#[test]
fn doc_comments_name_their_item() {
    let rule = |source: &Source| {
        let bad = source.facts.docs.iter().filter(|(_, text)| opens_badly(text));
        let first = |text: &str| text.lines().next().unwrap_or_default().to_owned();
        bad.map(|(line, text)| format!("{}:{line}: {}", source.path, first(text)))
            .collect::<Vec<_>>()
    };
    let all = [&PRODUCT[..], &["stories", "bench", "simulator", "tidy", "xtask", "fuzz/targets"]]
        .concat();
    let found: Vec<String> = sources(&all).iter().flat_map(rule).collect();
    assert_none(&found, "doc comments that open with What, Its, Whether, Where, How or Who");
}

/// The suite runs test binaries, and no examples in comments.
#[test]
fn examples_in_doc_comments_are_text() {
    let rule = |source: &Source| {
        let fences = source.facts.docs.iter().flat_map(|(line, text)| {
            let marks = text.lines().filter_map(|line| line.trim().strip_prefix("```"));
            marks.step_by(2).map(move |language| (*line, language.to_owned()))
        });
        let is_code = |(_, language): &(usize, String)| !["text", "json"].contains(&&**language);
        fences
            .filter(is_code)
            .map(|(line, language)| format!("{line}: {language:?}"))
            .collect::<Vec<_>>()
    };
    assert_none(&findings(rule), "examples that nothing tries: make them unit tests");
}

#[test]
fn comments_and_pages_use_plain_words() {
    let comments = |text: &str| {
        let lines =
            text.lines().filter_map(|line| line.split_once("// ").or(line.split_once("/// ")));
        lines.map(|(_, comment)| comment).collect::<Vec<_>>().join("\n")
    };
    let said = |text: String| {
        unwanted(&text)
            .map(|(word, better)| format!("{word:?}: write {better}"))
            .collect::<Vec<_>>()
    };
    let mut found = findings(|source| {
        let docs = source.facts.docs.iter().map(|(_, text)| text.as_str());
        said(docs.chain([&*comments(&source.text)]).collect::<Vec<_>>().join("\n"))
    });
    let is_page = |path: &&String| {
        path.ends_with(".md")
            && (!path.contains('/') || path.starts_with("docs/"))
            && *path != "CHANGELOG.md"
    };
    for path in tracked().iter().filter(is_page) {
        let text = fs::read_to_string(repository().join(path)).expect("a page can be read");
        found.extend(said(text).into_iter().map(|text| format!("{path}: {text}")));
    }
    assert_none(&found, "words with a plainer one");
}

#[test]
fn questions_return_bool_and_change_nothing() {
    let rule = |source: &Source| source.facts.not_questions.clone();
    assert_none(&findings(rule), "is_* or has_* that returns no bool, or takes &mut self");
}

#[test]
fn a_type_name_is_defined_once_in_the_product() {
    let mut defined: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for source in sources(&PRODUCT) {
        for name in &source.facts.types {
            defined.entry(name.clone()).or_default().insert(source.crate_name().to_owned());
        }
    }
    let twice = defined.into_iter().filter(|(_, crates)| crates.len() > 1);
    let found: Vec<String> = twice.map(|(name, crates)| format!("{name}: {crates:?}")).collect();
    assert_none(&found, "type names of several crates");
}

#[test]
fn files_functions_and_types_are_short() {
    let found = findings(|source| {
        let facts = &source.facts;
        let lines = source.text.lines().count();
        let file = (lines > FILE_LINES_MAX).then(|| format!("{lines} lines"));
        let is_long = |(_, lines): &&(String, usize)| *lines > FUNCTION_LINES_MAX;
        let functions = facts.functions.iter().filter(is_long);
        let functions = functions.map(|(name, lines)| format!("{name}: {lines} lines"));
        let is_large = |one: &&Struct| one.fields > FIELDS_MAX;
        let structs = facts.structs.iter().filter(is_large).filter(|one| !one.is_settings);
        let structs = structs.map(|one| format!("{}: {} fields", one.name, one.fields));
        file.into_iter().chain(functions).chain(structs).collect()
    });
    assert_none(&found, "too long to be read at a glance");
}

#[test]
fn a_thousand_lines_hold_few_public_items_and_casts_and_an_assertion() {
    let all = sources(&PRODUCT);
    let per_thousand = |count: fn(&Source) -> usize| {
        let lines: usize = all.iter().map(|source| source.facts.lines).sum();
        all.iter().map(count).sum::<usize>() as f64 * 1000.0 / lines as f64
    };
    let public = per_thousand(|source| source.facts.public);
    let tuple_lets = per_thousand(|source| source.facts.tuple_lets);
    let casts = per_thousand(|source| source.facts.casts);
    let assertions = per_thousand(|source| source.facts.assertions);
    assert!(public <= PUBLIC_MAX, "{public:.1} public items");
    assert!(tuple_lets <= TUPLE_LETS_MAX, "{tuple_lets:.2} tuples taken apart where they are made");
    assert!(casts <= CASTS_MAX, "{casts:.2} casts");
    assert!(assertions >= ASSERTIONS_MIN, "{assertions:.2} assertions");
}

#[test]
fn no_type_has_more_methods_than_one_can_know() {
    let mut methods: BTreeMap<(String, String), usize> = BTreeMap::new();
    for source in sources(&PRODUCT) {
        for (name, count) in &source.facts.methods {
            *methods.entry((source.crate_name().to_owned(), name.clone())).or_default() += count;
        }
    }
    let many = methods.into_iter().filter(|(_, count)| *count > METHODS_MAX);
    let found: Vec<String> =
        many.map(|((of, name), count)| format!("{of}: {name}: {count}")).collect();
    assert_none(&found, "types with too many methods");
}

#[test]
fn no_file_imports_itself_by_way_of_others() {
    let mut found = Vec::new();
    for name in PRODUCT {
        let files = sources(&[name]);
        let modules: BTreeSet<String> = files.iter().map(Source::module).collect();
        let imported = |source: &Source| {
            let module = source.module();
            let imported = imports(&module, &source.text, &modules);
            (module, imported)
        };
        let all = files.iter().map(imported).filter(|(module, _)| !module.is_empty()).collect();
        found.extend(circles(&all).into_iter().map(|module| format!("{name}: {module}")));
    }
    assert_none(&found, "import circles");
}

#[test]
fn evidence_does_not_swamp_the_source() {
    let files = tracked();
    let bytes = bytes_of(&files);
    assert!(files.len() <= TRACKED_MAX, "{} tracked files", files.len());
    assert!(bytes <= TRACKED_BYTES_MAX, "the tracked files have {bytes} bytes");
    let of_results = |file: &&String| file.starts_with(RESULTS);
    let results = bytes_of(&files.iter().filter(of_results).cloned().collect::<Vec<_>>());
    assert!(results <= RESULTS_BYTES_MAX, "{RESULTS} has {results} bytes");
}
