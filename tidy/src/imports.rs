//! Imports between the files of one crate.

use std::collections::{BTreeMap, BTreeSet};

/// Modules that each module imports, by names such as `store::gate`.
pub(crate) type Imports = BTreeMap<String, BTreeSet<String>>;

/// Modules of the crate that the source of `module` imports, tests left out. A name is as long as
/// there is a file for it. A module and the one that declares it may import each other.
#[must_use]
pub fn imports(module: &str, source: &str, modules: &BTreeSet<String>) -> BTreeSet<String> {
    let source = without_tests(source);
    let used = source.split("use ").skip(1).filter_map(|rest| {
        let path: String = rest.split(';').next()?.split_whitespace().collect();
        Some(path)
    });
    // A path in the code is as good as an import. Comments name what they like.
    let code = source.lines().filter(|line| !line.trim_start().starts_with("//"));
    let inline = code.flat_map(|line| line.split("crate::").skip(1)).map(|rest| {
        let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
        let end = rest.find(|c| !is_path(c)).unwrap_or(rest.len());
        format!("crate::{}", rest[..end].trim_end_matches(':'))
    });
    let inline = inline.filter(|path| path != "crate::");
    let named = used.chain(inline).flat_map(|path| each(&path)).filter_map(|path| {
        let path = absolute(module, &path)?;
        let parts: Vec<&str> = path.split("::").collect();
        (1..=parts.len())
            .rev()
            .map(|count| parts[..count].join("::"))
            .find(|name| modules.contains(name))
    });
    let is_family = |name: &String| {
        *name == module
            || module.strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with("::"))
            || name.strip_prefix(module).is_some_and(|rest| rest.starts_with("::"))
    };
    named.filter(|name| !is_family(name)).collect()
}

/// The source up to its module of tests.
fn without_tests(source: &str) -> &str {
    let begins = source.match_indices("#[cfg(test)]\n").find(|(at, mark)| {
        let next = source[at + mark.len()..].lines().next().unwrap_or_default();
        next.contains("mod ") && next.ends_with('{')
    });
    begins.map_or(source, |(at, _)| &source[..at])
}

/// Paths that a `use` names, without its outermost braces.
fn each(path: &str) -> Vec<String> {
    let Some((before, names)) = path.split_once('{') else { return vec![path.to_owned()] };
    let names = names.trim_end_matches('}');
    let mut depth = 0;
    let parts = names.split(move |letter: char| {
        depth += i32::from(letter == '{') - i32::from(letter == '}');
        letter == ',' && depth == 0
    });
    parts.map(|name| format!("{before}{name}")).collect()
}

/// A path from the root of the crate; `None` for other crates.
fn absolute(module: &str, path: &str) -> Option<String> {
    if let Some(path) = path.strip_prefix("crate::") {
        return Some(path.to_owned());
    }
    let mut base: Vec<&str> = module.split("::").collect();
    let mut rest = path;
    if let Some(path) = rest.strip_prefix("self::") {
        rest = path;
    } else {
        rest.strip_prefix("super::")?;
        while let Some(path) = rest.strip_prefix("super::") {
            base.pop();
            rest = path;
        }
    }
    base.push(rest);
    Some(base.join("::"))
}

/// Modules from which a chain of imports leads back to themselves.
#[must_use]
pub fn circles(all: &Imports) -> Vec<&str> {
    let reaches = |from: &str| {
        let mut reached = BTreeSet::new();
        let mut open = vec![from];
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imports_are_found_and_tests_left_out() {
        let modules =
            ["a", "b", "c", "e", "store", "store::gate", "store::looks"].map(str::to_owned).into();
        let source = "use crate::store::gate::{Gate, Passed};\nuse crate::{a, c::{D, E}};\nuse std::a;\n\
                      use super::looks::Looks;\n\
                      // See crate::b::C.\nfn f() { crate::e::g() }\n\
                      #[cfg(test)]\npub(crate) mod tests {\n    use crate::store::Store;\n}\n";
        let all = ["a", "c", "e", "store::gate", "store::looks"].map(str::to_owned);
        assert_eq!(imports("store::mode", source, &modules), all.into());
    }

    #[test]
    fn a_module_and_its_parent_are_one() {
        let modules = ["store", "store::gate"].map(str::to_owned).into();
        assert!(imports("store::gate", "use crate::store::Store;\n", &modules).is_empty());
        assert!(
            imports("store", "use gate::Gate;\nuse crate::store::gate::A;\n", &modules).is_empty()
        );
    }

    #[test]
    fn circles_are_found() {
        let edges = [("a", "b"), ("b", "c"), ("c", "b"), ("d", "a")];
        let all: Imports =
            edges.map(|(from, to)| (from.to_owned(), BTreeSet::from([to.to_owned()]))).into();
        assert_eq!(circles(&all), ["b", "c"]);
    }
}
