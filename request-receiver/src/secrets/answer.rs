//! Answers of the endpoint that names the secrets of a shop, or of several.

use std::collections::HashMap;
use std::str::from_utf8;
use std::sync::Arc;

use serde_json::value::RawValue;
use zeroize::Zeroizing;

/// Least length of a secret, in bytes. Shopify's have 32 and more. `null`, `OK` and other words with
/// which a server may answer 200 must not become a secret that anyone can guess.
const SECRET_BYTES_MIN: usize = 16;

/// Most secrets of a shop. Two are in use while one replaces another, and a webhook with a wrong
/// signature is hashed once for each.
const SECRETS_MAX: usize = 16;

/// Secrets of one shop in JSON.
#[derive(serde::Deserialize)]
#[serde(untagged)]
enum SecretsAnswer {
    One(Zeroizing<String>),
    Several(Vec<Zeroizing<String>>),
    Named { secrets: Vec<Zeroizing<String>> },
}

/// Parses an answer: JSON (a string, a list of strings, or an object with such a list as `secrets`),
/// or one secret per line. Empty ones are left out beside others. Only an empty list says that there
/// is none.
pub(super) fn parse(body: &[u8]) -> ShopAnswer {
    let text = text(body)?;
    checked(if text.starts_with(['{', '[', '"']) {
        let answer: SecretsAnswer = from_json(text, r#"{"secrets": ["…"]}"#)?;
        answer.secrets()
    } else {
        text.lines().map(|line| Zeroizing::new(line.trim().to_owned())).collect()
    })
}

/// Secrets of a shop, or what is wrong with them.
pub(super) type ShopAnswer = Result<Vec<Zeroizing<String>>, String>;

/// Parses an answer about several shops: a JSON object with the secrets of each by its domain, in any
/// form that [`parse`] takes. Returns them in the order of `shops`. Only an empty list says that a shop
/// has none.
pub(super) fn parse_several(body: &[u8], shops: &[Arc<str>]) -> Result<Vec<ShopAnswer>, String> {
    // What is wrong with one shop's must not fail the others'.
    let answers: HashMap<String, &RawValue> =
        from_json(text(body)?, r#"{"example.myshopify.com": ["…"]}"#)?;
    let of_shop = |shop: &Arc<str>| -> ShopAnswer {
        // A server that knows a part of its shops for a while does not name the others.
        let answer = answers.get(&**shop).ok_or("its answer does not name the shop")?;
        let answer: SecretsAnswer = from_json(answer.get(), r#"["…"] for the shop"#)?;
        checked(answer.secrets())
    };
    Ok(shops.iter().map(of_shop).collect())
}

fn text(body: &[u8]) -> Result<&str, String> {
    let text = from_utf8(body).map_err(|_| "its answer is not UTF-8".to_owned())?.trim();
    // A server that is not well answers so. `[]` says that there is none.
    if text.is_empty() { Err("its answer is empty".to_owned()) } else { Ok(text) }
}

/// Parses JSON. No part of the answer gets into the error, which may be logged.
fn from_json<'a, T: serde::Deserialize<'a>>(text: &'a str, form: &str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|error| {
        format!("its answer, line {}, column {}, is not {form}", error.line(), error.column())
    })
}

impl SecretsAnswer {
    fn secrets(self) -> Vec<Zeroizing<String>> {
        match self {
            Self::One(secret) => vec![secret],
            Self::Several(secrets) | Self::Named { secrets } => secrets,
        }
    }
}

fn checked(secrets: Vec<Zeroizing<String>>) -> ShopAnswer {
    // A page that says what is wrong must not become secrets.
    let is_secret =
        |text: &str| !text.contains(|letter: char| letter.is_whitespace() || letter == '<');
    if secrets.iter().any(|secret| !is_secret(secret)) {
        return Err("its answer is neither JSON nor one secret per line, or has white space or < in a secret".to_owned());
    }
    let is_none = secrets.is_empty();
    let secrets: Vec<_> = secrets.into_iter().filter(|secret| !secret.is_empty()).collect();
    if secrets.is_empty() && !is_none {
        return Err("its answer holds an empty secret alone".to_owned());
    }
    if secrets.iter().any(|secret| secret.len() < SECRET_BYTES_MIN) {
        return Err(format!("its answer holds a secret of less than {SECRET_BYTES_MIN} letters"));
    }
    if secrets.len() > SECRETS_MAX {
        return Err(format!("its answer holds more than {SECRETS_MAX} secrets"));
    }
    Ok(secrets)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(body: &str) -> Result<Vec<String>, String> {
        Ok(parse(body.as_bytes())?.iter().map(|secret| secret.to_string()).collect())
    }

    #[test]
    fn an_answer_is_json_or_one_secret_per_line() {
        let two = ["letters-of-one-16".to_owned(), "letters-of-two-16".to_owned()];
        for form in [
            r#"{"secrets": ["1", "2"]}"#,
            r#"{"shop": "x", "secrets": ["1", "", "2"]}"#,
            r#"["1","2"]"#,
            "1\n2\n",
            "\r\n 1 \r\n\r\n2",
        ] {
            let body = form.replace('2', "letters-of-two-#").replace('1', "letters-of-one-#");
            let body = body.replace('#', "16");
            assert_eq!(texts(&body).as_deref(), Ok(&two[..]), "{body}");
        }
        assert_eq!(texts(r#""letters-of-one-16""#).as_deref(), Ok(&two[..1]));
        for none in ["[]", r#"{"secrets":[]}"#] {
            assert_eq!(texts(none).as_deref(), Ok(&[][..]), "{none}");
        }
    }

    #[test]
    fn an_answer_about_several_shops_names_each() {
        let shops = ["a.example", "b.example", "c.example", "d.example", "e.example", "f.example"];
        let shops = shops.map(Arc::from);
        let body = r#"{"b.example": ["letters-of-two-16"], "a.example": "letters-of-one-16",
            "c.example": {"secrets": []}, "d.example": ["OK"], "e.example": null}"#;
        let answers = parse_several(body.as_bytes(), &shops).expect("an object");
        let texts = |at: usize| -> Result<Vec<&str>, &str> {
            let secrets = answers[at].as_ref().map_err(String::as_str)?;
            Ok(secrets.iter().map(|secret| secret.as_str()).collect())
        };
        assert_eq!(texts(0), Ok(vec!["letters-of-one-16"]));
        assert_eq!(texts(1), Ok(vec!["letters-of-two-16"]));
        assert_eq!(texts(2), Ok(vec![]));
        assert_eq!(texts(3), Err("its answer holds a secret of less than 16 letters"));
        let problem = texts(4).expect_err("null is no list");
        assert!(problem.ends_with(r#"is not ["…"] for the shop"#), "{problem}");
        assert_eq!(texts(5), Err("its answer does not name the shop"));
        for body in ["", "[]", "letters-of-one-16", r#"["hush", 1]"#, r#"{"a.example": ["hush""#] {
            let problem = parse_several(body.as_bytes(), &shops).expect_err(body);
            assert!(problem.starts_with("its answer") && !problem.contains("hush"), "{problem}");
        }
    }

    #[test]
    fn a_word_that_anyone_can_guess_is_no_secret() {
        for body in
            ["null", "false", "OK", "0", r#""OK""#, r#"["none"]"#, "letters-of-one\n1234567890"]
        {
            let problem = texts(body).expect_err(body);
            assert_eq!(problem, "its answer holds a secret of less than 16 letters", "{body}");
        }
        let many = |count| (0..count).map(|number| format!("letters-of-{number:05}\n")).collect();
        let many: [String; 2] = [SECRETS_MAX, SECRETS_MAX + 1].map(many);
        assert!(texts(&many[0]).is_ok());
        assert_eq!(texts(&many[1]).expect_err("a page"), "its answer holds more than 16 secrets");
        for body in [r#""""#, r#"[""]"#, r#"{"secrets":["",""]}"#] {
            assert_eq!(texts(body).expect_err(body), "its answer holds an empty secret alone");
        }
    }

    #[test]
    fn what_is_no_answer_is_a_failure_and_is_not_repeated() {
        for body in [
            "",
            " \n",
            "<html>hush</html>",
            "no such shop: hush",
            r#"{"secret": "hush"}"#,
            r#"["hush", 1]"#,
            r#"{"secrets": ["hush""#,
        ] {
            let problem = texts(body).expect_err(body);
            assert!(problem.starts_with("its answer") && !problem.contains("hush"), "{problem}");
        }
        assert!(parse(b"\xff").is_err());
    }
}
