//! API tokens: a file holds their digests, a program sends one as a bearer.
//!
//! A line is `name:role:digest`, with `+personal` after the role. A token has 256 random bits, so one round of SHA-256
//! is enough: nobody can try them all.

use std::fmt;
use std::future::ready;
use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use crate::access::{Caller, Credential};
use crate::authenticate::{Authenticate, FoundCaller};
use crate::users::{AccessGrant, ensure_name, entries};

/// Beginning of every token, by which scanners of secrets find one that leaked.
const PREFIX: &str = "spillway_";
/// Beginning of a token's name in the audit: no user has a colon in the name.
const NAME_PREFIX: &str = "token:";
/// Scheme in front of the token. Its case does not matter (RFC 9110, section 11.1).
const SCHEME: &[u8] = b"Bearer ";

/// SHA-256 of a token.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TokenDigest([u8; 32]);

/// An API token, without its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenEntry {
    /// Name.
    pub name: String,
    /// Role, and the permission to see personal data.
    pub grant: AccessGrant,
    /// Digest of the secret.
    pub digest: TokenDigest,
}

/// The tokens of a file, in its order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenList(pub Vec<TokenEntry>);

/// The tokens while the process runs; replaced when the file changes.
#[derive(Debug, Default)]
pub struct ApiTokens(ArcSwap<TokenList>);

/// Knows a caller by a bearer token.
pub struct BearerAccess(pub Arc<ApiTokens>);

impl TokenDigest {
    /// Digest of a token.
    fn of(token: &[u8]) -> Self {
        Self(Sha256::digest(token).into())
    }

    fn parse(text: &str) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        bytes.try_into().ok().map(Self)
    }
}

impl fmt::Debug for TokenDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenDigest")
    }
}

impl TokenEntry {
    /// A new token, and its secret, which is shown once.
    pub fn create(name: String, grant: AccessGrant) -> (Self, Zeroizing<String>) {
        let secret = Zeroizing::new(rand::random::<[u8; 32]>());
        let token = Zeroizing::new(format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(*secret)));
        let digest = TokenDigest::of(token.as_bytes());
        (Self { name, grant, digest }, token)
    }

    fn parse(line: &str) -> Result<Self, String> {
        let mut parts = line.splitn(3, ':');
        let mut part = || parts.next().map(str::trim).unwrap_or_default();
        let name = part();
        ensure_name(name)?;
        let grant = AccessGrant::parse(part()).map_err(|problem| format!("{name}: {problem}"))?;
        let digest = TokenDigest::parse(part());
        let digest = digest.ok_or_else(|| format!("{name}: there is no digest after the role"))?;
        Ok(Self { name: name.to_owned(), grant, digest })
    }
}

impl fmt::Display for TokenEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.name, self.grant, URL_SAFE_NO_PAD.encode(self.digest.0))
    }
}

impl TokenList {
    /// Reads the lines of a file. Empty lines and those that begin with `#` are skipped.
    ///
    /// # Errors
    /// A sentence with the number of the line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut tokens: Vec<TokenEntry> = Vec::new();
        for (number, line) in entries(text) {
            let token =
                TokenEntry::parse(line).map_err(|problem| format!("line {number}: {problem}"))?;
            if tokens.iter().any(|known| known.name == token.name) {
                return Err(format!("line {number}: {} is there twice", token.name));
            }
            tokens.push(token);
        }
        Ok(Self(tokens))
    }
}

impl fmt::Display for TokenList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|token| writeln!(f, "{token}"))
    }
}

impl ApiTokens {
    /// Tokens of this list.
    pub fn new(list: TokenList) -> Self {
        Self(ArcSwap::from_pointee(list))
    }

    /// Takes this list from now on.
    pub fn replace(&self, list: TokenList) {
        self.0.store(Arc::new(list));
    }

    /// The caller that sends this token. Digests are compared: the time that it takes tells nothing about a token.
    fn find(&self, token: &[u8]) -> Option<Caller> {
        let digest = TokenDigest::of(token);
        let tokens = self.0.load();
        let found = tokens.0.iter().find(|known| known.digest == digest)?;
        Some(Caller {
            name: format!("{NAME_PREFIX}{}", found.name),
            role: found.grant.role,
            sees_personal_data: found.grant.sees_personal_data,
            credential: Credential::Bearer,
            session: None,
        })
    }
}

impl Authenticate for BearerAccess {
    fn caller<'a>(&'a self, head: &'a Parts) -> FoundCaller<'a> {
        Box::pin(ready(bearer(head).and_then(|token| self.0.find(token))))
    }
}

fn bearer(head: &Parts) -> Option<&[u8]> {
    let given = head.headers.get(AUTHORIZATION)?.as_bytes();
    let (scheme, token) = given.split_at_checked(SCHEME.len())?;
    scheme.eq_ignore_ascii_case(SCHEME).then(|| token.trim_ascii())
}

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::*;
    use crate::access::Role;

    fn head(value: &str) -> Parts {
        let request = Request::builder().header("authorization", value).body(()).unwrap();
        request.into_parts().0
    }

    #[tokio::test]
    async fn a_token_is_known_by_its_digest_until_it_is_removed() {
        let grant = AccessGrant::parse("operator").unwrap();
        let (entry, token) = TokenEntry::create("deploy".to_owned(), grant);
        let list = TokenList(vec![entry]);
        assert!(!list.to_string().contains(token.as_str()));
        let read = TokenList::parse(&format!("# tokens\n{list}")).unwrap();
        assert_eq!(read, list);
        let access = BearerAccess(Arc::new(ApiTokens::new(read)));
        let found = access.caller(&head(&format!("bearer  {} ", token.as_str()))).await.unwrap();
        assert_eq!((found.name.as_str(), found.credential), ("token:deploy", Credential::Bearer));
        assert_eq!(found.session, None);
        let digest = list.to_string();
        let digest = digest.trim().rsplit(':').next().unwrap();
        for bad in [
            "",
            "Bearer",
            "Bearer ",
            "Bearer spillway_",
            &token[..],
            &format!("Bearer {digest}"),
            &format!("Basic {}", token.as_str()),
        ] {
            assert_eq!(access.caller(&head(bad)).await, None, "{bad}");
        }
        access.0.replace(TokenList::default());
        assert_eq!(access.caller(&head(&format!("Bearer {}", token.as_str()))).await, None);
    }

    #[test]
    fn a_mistake_names_its_line() {
        for line in
            ["deploy", "deploy:viewer", "deploy:viewer:abc", "deploy:boss:abc", ":viewer:abc"]
        {
            let problem = TokenList::parse(&format!("\n{line}")).expect_err(line);
            assert!(problem.starts_with("line 2: "), "{problem}");
        }
    }

    #[test]
    fn two_tokens_differ() {
        let grant = AccessGrant::parse("viewer").unwrap();
        let create = || TokenEntry::create("x".to_owned(), grant).1;
        assert_ne!(*create(), *create());
        assert!(create().starts_with(PREFIX) && create().len() == PREFIX.len() + 43);
    }

    #[tokio::test]
    async fn a_caller_has_the_role_of_the_token_and_sees_what_it_grants() {
        let personal = |role: Role| [false, true].map(|sees| (role, sees));
        let grants = Role::ALL.into_iter().flat_map(personal);
        let created = grants.enumerate().map(|(number, (role, sees_personal_data))| {
            TokenEntry::create(format!("t{number}"), AccessGrant { role, sees_personal_data })
        });
        let (entries, tokens): (Vec<TokenEntry>, Vec<_>) = created.unzip();
        let list = TokenList(entries.clone()).to_string();
        let list = TokenList::parse(&list).expect("the list that was written");
        let access = BearerAccess(Arc::new(ApiTokens::new(list)));
        for (entry, token) in entries.iter().zip(&tokens) {
            let found = access.caller(&head(&format!("Bearer {}", token.as_str()))).await;
            let found = found.expect("a token of the list");
            assert_eq!(found.name, format!("token:{}", entry.name));
            let Caller { role, sees_personal_data, .. } = found;
            assert_eq!(AccessGrant { role, sees_personal_data }, entry.grant, "{}", entry.name);
        }
    }

    #[test]
    fn a_name_that_is_there_twice_is_refused() {
        let [one, other] = [1_u8, 2].map(|byte| URL_SAFE_NO_PAD.encode([byte; 32]));
        let refused = |name: &str| {
            TokenList::parse(&format!("deploy:viewer:{one}\n\n{name}:admin:{other}")).err()
        };
        assert_eq!(refused("deploy").as_deref(), Some("line 3: deploy is there twice"));
        assert_eq!(refused("deploy2"), None);
    }
}
