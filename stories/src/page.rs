//! Pages under docs/. Their code is run exactly as printed.

use std::fs;

use crate::binaries::repository;

/// A fenced block: its language and its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Text after the fence; empty if there is none.
    pub language: String,
    /// Lines between the fences.
    pub text: String,
}

/// Text of a page. The name is relative to the root of the repository.
fn text(page: &str) -> String {
    fs::read_to_string(repository().join(page)).unwrap_or_else(|error| panic!("{page}: {error}"))
}

/// All fenced blocks of a page.
pub fn blocks(text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for line in text.lines() {
        // In a list, a fence is indented.
        let fence = line.trim_start().strip_prefix("```");
        match (&mut open, fence) {
            (None, Some(language)) => {
                let language = language.trim().to_owned();
                open = Some(Block { language, text: String::new() });
            }
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(block), None) => {
                block.text.push_str(line);
                block.text.push('\n');
            }
            (None, None) => {}
        }
    }
    blocks
}

/// Targets of links to files in the repository.
pub fn links(text: &str) -> Vec<String> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    let targets = targets.map(|(target, _)| target.to_owned());
    targets
        .filter(|target| !target.contains("://") && !target.contains(char::is_whitespace))
        .collect()
}

/// The only block of a page in this language.
pub fn only_block(page: &str, language: &str) -> String {
    let mut found = blocks(&text(page)).into_iter().filter(|block| block.language == language);
    let block = found.next().unwrap_or_else(|| panic!("no block in {language} in {page}"));
    assert!(found.next().is_none(), "more than one block in {language} in {page}");
    block.text
}

#[cfg(test)]
mod tests {
    use super::{Block, blocks, links};

    #[test]
    fn a_block_is_what_stands_between_fences() {
        let block = |language: &str, text: &str| Block {
            language: language.to_owned(),
            text: text.to_owned(),
        };
        let page = "a\n```sh\nls\n```\nb `c`\n1. d\n\n   ```\n   e\n   ```\n";
        assert_eq!(blocks(page), [block("sh", "ls\n"), block("", "   e\n")]);
    }

    #[test]
    fn links_to_other_places_are_left_out() {
        let page = "[a](b.md#c), [d](https://e/f.md) and [g](../h).";
        assert_eq!(links(page), ["b.md#c", "../h"]);
    }
}
