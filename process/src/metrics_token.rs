//! Bearer tokens that `/metrics` asks for: `METRICS_TOKEN_FILE`.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use zeroize::Zeroizing;

use crate::reload::FromFiles;
use crate::settings::read_lines;

/// Scheme in front of the token. Its case does not matter (RFC 9110, section 11.1).
const SCHEME: &[u8] = b"Bearer ";

/// Word for one of them in messages.
const NOUN: &str = "token";

/// Tokens, which are read again when their file changes.
pub struct MetricsToken {
    file: PathBuf,
    tokens: ArcSwap<Vec<Zeroizing<String>>>,
}

impl MetricsToken {
    /// Reads the tokens, one per line.
    ///
    /// # Errors
    /// A sentence that names the file, not its content.
    pub(crate) fn read(file: PathBuf) -> Result<Self, String> {
        let tokens = ArcSwap::from_pointee(read_lines(&file, NOUN)?);
        Ok(Self { file, tokens })
    }

    /// Returns true if the headers hold one of the tokens.
    pub(crate) fn admits(&self, headers: &HeaderMap) -> bool {
        let given = headers.get(AUTHORIZATION).map(|value| value.as_bytes()).unwrap_or_default();
        let Some((scheme, given)) = given.split_at_checked(SCHEME.len()) else { return false };
        let tokens = self.tokens.load();
        // All are compared: the time that it takes shows neither which one fits nor how far.
        let fitting = tokens.iter().filter(|token| is_same(token.as_bytes(), given.trim_ascii()));
        fitting.count() > 0 && scheme.eq_ignore_ascii_case(SCHEME)
    }
}

/// Compares in a time that depends on the lengths only.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    let different = one.iter().zip(other).fold(0, |bits, (one, other)| bits | (one ^ other));
    std::hint::black_box(different) == 0 && one.len() == other.len()
}

impl FromFiles for MetricsToken {
    fn files(&self) -> Vec<PathBuf> {
        vec![self.file.clone()]
    }

    fn reload(&self) -> bool {
        match read_lines(&self.file, NOUN) {
            Ok(tokens) => {
                let count = tokens.len();
                self.tokens.store(Arc::new(tokens));
                tracing::info!(count, "tokens for /metrics read again");
                true
            }
            Err(problem) => {
                tracing::error!(%problem, "METRICS_TOKEN_FILE could not be read again; the old tokens stay in force");
                false
            }
        }
    }
}

// Written by hand: a token is a secret.
impl fmt::Debug for MetricsToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetricsToken").field("file", &self.file).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn any_of_the_tokens_admits_and_nothing_else() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "old-token\nnew-token\n").expect("write");
        let token = MetricsToken::read(file.path().to_owned()).expect("read");
        let admits = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, HeaderValue::from_str(value).expect("a value"));
            token.admits(&headers)
        };
        for good in ["Bearer old-token", "bearer new-token", "BEARER  new-token "] {
            assert!(admits(good), "{good}");
        }
        for bad in
            ["", "Bearer", "Bearer ", "Bearer old-toke", "Bearer old-token-", "Basic old-token"]
        {
            assert!(!admits(bad), "{bad}");
        }
        assert!(!token.admits(&HeaderMap::new()));
        std::fs::write(file.path(), "new-token\n").expect("write");
        assert!(token.reload() && !admits("Bearer old-token") && admits("Bearer new-token"));
        std::fs::write(file.path(), "\n").expect("write");
        assert!(!token.reload() && admits("Bearer new-token"), "the old ones stay");
        let problem = MetricsToken::read(file.path().to_owned()).expect_err("it is empty");
        assert!(problem.ends_with("holds no token"), "{problem}");
        assert!(!format!("{token:?}").contains("new-token"));
    }
}
