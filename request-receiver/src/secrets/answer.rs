//! Answers of the endpoint that names the secrets of a shop.

use std::str::from_utf8;

use zeroize::Zeroizing;

/// Least length of a secret, in bytes. Shopify's have 32 and more. `null`, `OK` and other words with
/// which a server may answer 200 must not become a secret that anyone can guess.
const SECRET_BYTES_MIN: usize = 16;

/// An answer in JSON.
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
pub(super) fn parse(body: &[u8]) -> Result<Vec<Zeroizing<String>>, String> {
    let text = from_utf8(body).map_err(|_| "its answer is not UTF-8".to_owned())?.trim();
    if text.is_empty() {
        // A server that is not well answers so, too. `[]` says that there is none.
        return Err("its answer is empty".to_owned());
    }
    let secrets = if text.starts_with(['{', '[', '"']) {
        // No part of the answer may get into a log.
        let answer = serde_json::from_str(text).map_err(|error| {
            let line = error.line();
            let column = error.column();
            format!(r#"its answer, line {line}, column {column}, is not {{"secrets": ["…"]}}"#)
        })?;
        match answer {
            SecretsAnswer::One(secret) => vec![secret],
            SecretsAnswer::Several(secrets) | SecretsAnswer::Named { secrets } => secrets,
        }
    } else {
        text.lines().map(|line| Zeroizing::new(line.trim().to_owned())).collect()
    };
    // A page that says what is wrong must not become secrets.
    let is_secret =
        |text: &str| !text.contains(|letter: char| letter.is_whitespace() || letter == '<');
    if secrets.iter().any(|secret| !is_secret(secret)) {
        return Err("its answer is neither JSON nor one secret per line".to_owned());
    }
    let is_none = secrets.is_empty();
    let secrets: Vec<_> = secrets.into_iter().filter(|secret| !secret.is_empty()).collect();
    if secrets.is_empty() && !is_none {
        return Err("its answer holds an empty secret alone".to_owned());
    }
    if secrets.iter().any(|secret| secret.len() < SECRET_BYTES_MIN) {
        return Err(format!("its answer holds a secret of less than {SECRET_BYTES_MIN} letters"));
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
    fn a_word_that_anyone_can_guess_is_no_secret() {
        for body in
            ["null", "false", "OK", "0", r#""OK""#, r#"["none"]"#, "letters-of-one\n1234567890"]
        {
            let problem = texts(body).expect_err(body);
            assert_eq!(problem, "its answer holds a secret of less than 16 letters", "{body}");
        }
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
