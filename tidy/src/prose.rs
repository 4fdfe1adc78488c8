//! Rules for the language of comments and pages.

/// Words that a doc comment does not open with: the item is not named by them.
const OPENERS: [&str; 8] = ["What", "Its", "It", "Whether", "Where", "How", "Who", "Whoever"];

/// Words and phrases with a plainer one, which comes second.
const UNWANTED: [(&str, &str); 10] = [
    ("mend", "fix"),
    ("mends", "fixes"),
    ("mended", "fixed"),
    ("anew", "again"),
    ("besides", "also"),
    ("whoever", "the one that"),
    ("behind the cursor", "before or after the cursor"),
    ("past the cursor", "after the cursor"),
    ("but for", "except"),
    ("is told", "receives, or is set"),
];

/// True if a doc comment opens with a word that does not name the item.
#[must_use]
pub fn opens_badly(doc: &str) -> bool {
    let first = doc.trim_start().split(|letter: char| !letter.is_alphabetic()).next();
    first.is_some_and(|word| OPENERS.contains(&word))
}

/// Unwanted words in a text, each with the plainer one.
pub fn unwanted(text: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let words = text.to_lowercase();
    let words: Vec<&str> = words
        .split(|letter: char| !letter.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .collect();
    let all = format!(" {} ", words.join(" "));
    UNWANTED.into_iter().filter(move |(word, _)| all.contains(&format!(" {word} ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openers_are_words_and_not_beginnings_of_words() {
        assert!(opens_badly("What is stored.") && opens_badly(" It's one."));
        assert!(!opens_badly("Items to store.") && !opens_badly("Wherever it is."));
    }

    #[test]
    fn unwanted_words_are_found_whole_and_over_line_ends() {
        let found: Vec<&str> =
            unwanted("It lies behind\nthe cursor; mended.").map(|(word, _)| word).collect();
        assert_eq!(found, ["mended", "behind the cursor"]);
        assert_eq!(unwanted("amendments").count(), 0);
    }
}
