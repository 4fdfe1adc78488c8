//! Shape of the receiver's source: no import circle, no file or type beyond what one reads at a glance.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

const LINES_MAX: usize = 500;
const FIELDS_MAX: usize = 12;

/// Imports of each file, by the names of modules such as `store::gate`.
type Imports = BTreeMap<String, BTreeSet<String>>;

fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("it can be listed");
    let paths = entries.map(|entry| entry.expect("it can be listed").path());
    paths.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// Name of a file's module; empty for the root of the crate.
fn module(root: &Path, file: &Path) -> String {
    let path = file.strip_prefix(root).expect("it lies there").with_extension("");
    let name = path.to_string_lossy().replace('/', "::");
    if name == "lib" { String::new() } else { name }
}

/// Modules of the crate that a source imports, tests left out. Names are as long as there are files for them.
fn imports(source: &str, modules: &BTreeSet<String>) -> BTreeSet<String> {
    let product = source.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    let used = product.lines().filter_map(|line| line.trim().strip_prefix("use crate::"));
    let named = used.filter_map(|path| {
        let path = path.trim_end_matches(';').replace("::{", "::");
        let parts: Vec<&str> = path.split("::").collect();
        (1..=parts.len())
            .rev()
            .map(|count| parts[..count].join("::"))
            .find(|name| modules.contains(name))
    });
    named.collect()
}

/// Modules from which a way of imports leads back to themselves.
fn in_circles(all: &Imports) -> Vec<&str> {
    let reaches = |from: &str| {
        let (mut reached, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(name) = open.pop() {
            for next in all.get(name).into_iter().flatten() {
                if reached.insert(next.as_str()) {
                    open.push(next);
                }
            }
        }
        reached
    };
    all.keys().map(String::as_str).filter(|name| reaches(name).contains(name)).collect()
}

/// Names of the structs with more fields than one takes in.
fn large_structs(source: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut lines = source.lines();
    while let Some(line) = lines.next() {
        let Some((_, name)) = line.split_once("struct ").filter(|_| line.ends_with('{')) else {
            continue;
        };
        let body = lines.by_ref().take_while(|line| !line.starts_with('}'));
        let is_field = |line: &&str| {
            line.strip_prefix("    ")
                .is_some_and(|field| !field.starts_with([' ', '/', '#']) && field.contains(": "))
        };
        if body.filter(is_field).count() > FIELDS_MAX {
            found.push(name.to_owned());
        }
    }
    found
}

#[test]
fn no_file_imports_itself_by_way_of_others() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let files = files(&root);
    let modules: BTreeSet<String> = files.iter().map(|file| module(&root, file)).collect();
    let all: Imports = files
        .iter()
        .filter(|file| !file.components().any(|part| part.as_os_str() == "simulation"))
        .map(|file| {
            let source = fs::read_to_string(file).expect("it can be read");
            let name = module(&root, file);
            let mut imported = imports(&source, &modules);
            imported.remove(&name);
            (name, imported)
        })
        .filter(|(name, _)| !name.is_empty())
        .collect();
    assert!(all.len() > 30, "{}", all.len());
    assert_eq!(in_circles(&all), [""; 0]);
}

#[test]
fn files_and_types_can_be_read_at_a_glance() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for file in files(&root) {
        let source = fs::read_to_string(&file).expect("it can be read");
        let lines = source.lines().count();
        assert!(lines <= LINES_MAX, "{}: {lines} lines", file.display());
        if !file.ends_with("settings.rs") {
            assert_eq!(large_structs(&source), [""; 0], "{}", file.display());
        }
    }
}

#[test]
fn circles_imports_and_large_structs_are_seen() {
    let modules = ["a", "store", "store::gate"].map(str::to_owned).into();
    let source = "use crate::store::gate::{Gate, Passed};\nuse crate::a;\nuse std::a;\n\
                  #[cfg(test)]\nmod tests {\n    use crate::store::Store;\n}\n";
    assert_eq!(imports(source, &modules), ["a", "store::gate"].map(str::to_owned).into());
    let edges = [("a", "b"), ("b", "c"), ("c", "b"), ("d", "a")];
    let all: Imports =
        edges.map(|(from, to)| (from.to_owned(), BTreeSet::from([to.to_owned()]))).into();
    assert_eq!(in_circles(&all), ["b", "c"]);
    let fields: String = (0..13).map(|number| format!("    pub a{number}: u8,\n")).collect();
    assert_eq!(large_structs(&format!("struct Large {{\n{fields}}}\n")), ["Large {"]);
}
