//! Users of the console: the lines of a file, and the same while the process runs.
//!
//! A line is `name:role:hash`, with `+personal` after the role for one who may see bodies and headers. A `*` in place of
//! the hash is a user without a password, who comes by a trusted proxy only.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use sha2::{Digest as _, Sha256};

use crate::access::{Caller, Credential, Role, SessionKey};
use crate::authenticate::AnonymousAccess;
use crate::password::PasswordHash;

/// Most letters of a name.
const NAME_MAX: usize = 64;
/// Word for a user without a password.
const NO_PASSWORD: &str = "*";
/// Suffix of a role for one who sees personal data.
const PERSONAL: &str = "+personal";

/// A user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserEntry {
    /// Name.
    pub name: String,
    /// Role, and the permission to see personal data.
    pub grant: AccessGrant,
    /// Password; `None` for a user who comes by a trusted proxy only.
    pub password: Option<PasswordHash>,
}

/// Role of a user or token, and the permission that no role holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AccessGrant {
    /// Role.
    pub role: Role,
    /// True if bodies and headers are shown.
    pub sees_personal_data: bool,
}

/// The users of a file, in its order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UserList(pub Vec<UserEntry>);

/// The users while the process runs; replaced when the file changes.
#[derive(Debug, Default)]
pub struct Users(ArcSwap<UserList>);

impl UserEntry {
    /// The user as the caller of a request, with the credential by which they are known.
    pub(crate) fn caller(&self, credential: Credential, session: SessionKey) -> Caller {
        Caller {
            name: self.name.clone(),
            role: self.grant.role,
            sees_personal_data: self.grant.sees_personal_data,
            credential,
            session: Some(session),
        }
    }

    /// Mark of the password. A session whose user has another one by now has ended.
    pub(crate) fn password_mark(&self) -> Option<[u8; 32]> {
        let password = self.password.as_ref()?;
        Some(Sha256::digest(password.to_string()).into())
    }

    fn parse(line: &str) -> Result<Self, String> {
        let mut parts = line.splitn(3, ':');
        let mut part = || parts.next().map(str::trim).unwrap_or_default();
        let name = part();
        ensure_name(name)?;
        let grant = AccessGrant::parse(part()).map_err(|problem| format!("{name}: {problem}"))?;
        let password = match part() {
            NO_PASSWORD => None,
            hash => Some(
                hash.parse::<PasswordHash>()
                    .map_err(|problem| format!("{name}: the hash {problem}"))?,
            ),
        };
        Ok(Self { name: name.to_owned(), grant, password })
    }
}

impl fmt::Display for UserEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:", self.name, self.grant)?;
        match &self.password {
            Some(password) => write!(f, "{password}"),
            None => f.write_str(NO_PASSWORD),
        }
    }
}

impl AccessGrant {
    /// Reads a role, with `+personal` or without.
    ///
    /// # Errors
    /// The roles that there are.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (role, sees_personal_data) = match text.strip_suffix(PERSONAL) {
            Some(role) => (role, true),
            None => (text, false),
        };
        Ok(Self { role: role.parse()?, sees_personal_data })
    }
}

impl fmt::Display for AccessGrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let personal = if self.sees_personal_data { PERSONAL } else { "" };
        write!(f, "{}{personal}", self.role)
    }
}

impl UserList {
    /// Reads the lines of a file. Empty lines and those that begin with `#` are skipped.
    ///
    /// # Errors
    /// A sentence with the number of the line. It holds no hash.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut users: Vec<UserEntry> = Vec::new();
        for (number, line) in entries(text) {
            let user =
                UserEntry::parse(line).map_err(|problem| format!("line {number}: {problem}"))?;
            if users.iter().any(|known| known.name == user.name) {
                return Err(format!("line {number}: {} is there twice", user.name));
            }
            users.push(user);
        }
        Ok(Self(users))
    }

    /// The user of this name.
    pub fn find(&self, name: &str) -> Option<&UserEntry> {
        self.0.iter().find(|user| user.name == name)
    }
}

impl fmt::Display for UserList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|user| writeln!(f, "{user}"))
    }
}

impl Users {
    /// Users of this list.
    pub fn new(list: UserList) -> Self {
        Self(ArcSwap::from_pointee(list))
    }

    /// Takes this list from now on.
    pub fn replace(&self, list: UserList) {
        self.0.store(Arc::new(list));
    }

    /// The user of this name.
    pub(crate) fn find(&self, name: &str) -> Option<UserEntry> {
        self.0.load().find(name).cloned()
    }
}

/// Lines with their numbers, without empty ones and comments.
pub(crate) fn entries(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
    lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
}

/// Refuses a name that a log, the audit or the file could take for something else.
///
/// # Errors
/// The form that is expected.
pub fn ensure_name(name: &str) -> Result<(), String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._@+-".contains(&byte);
    if name == AnonymousAccess::NAME {
        return Err(format!("{name:?} is the name of everybody without a login: use another"));
    }
    let starts_well = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    if starts_well && name.len() <= NAME_MAX && name.bytes().all(is_plain) {
        return Ok(());
    }
    let shown: String = name.chars().take(NAME_MAX).collect();
    Err(format!(
        "{shown:?} is no name: use up to {NAME_MAX} letters, digits and any of ._@+-, the first one a letter or digit"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::password::cheap;

    fn user(name: &str, grant: &str, password: Option<&str>) -> UserEntry {
        let grant = AccessGrant::parse(grant).expect("a role");
        UserEntry { name: name.to_owned(), grant, password: password.map(cheap) }
    }

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let mia = user("mia", "support+personal", Some("correct horse"));
        let leo = user("leo@example.com", "viewer", None);
        let list = UserList(vec![mia, leo]);
        let text = format!("# users\n\n{list}");
        assert_eq!(UserList::parse(&text), Ok(list.clone()));
        assert!(list.to_string().contains("leo@example.com:viewer:*\n"));
        assert!(list.find("mia").is_some_and(|mia| mia.grant.sees_personal_data));
        assert!(list.find("Mia").is_none() && list.find("").is_none());
    }

    #[test]
    fn a_mistake_names_its_line_and_no_hash() {
        let hash = cheap("x").to_string();
        for (line, told) in [
            ("mia".to_owned(), "line 2: mia: \"\" is no role"),
            (format!("mia:root:{hash}"), "line 2: mia: \"root\" is no role"),
            ("mia:viewer:hunter2hunter2".to_owned(), "line 2: mia: the hash is no Argon2id hash"),
            ("mia:viewer:".to_owned(), "line 2: mia: the hash is no"),
            (
                "mia:viewer:$argon2id$v=19$m=262144,t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc".to_owned(),
                "line 2: mia: the hash takes more than 64 MiB",
            ),
            (format!(":viewer:{hash}"), "line 2: \"\" is no name"),
            (format!("a b:viewer:{hash}"), "line 2: \"a b\" is no name"),
            (format!("leo:viewer:{hash}"), "line 2: leo is there twice"),
        ] {
            let problem = UserList::parse(&format!("leo:admin:*\n{line}")).expect_err(&line);
            assert!(problem.contains(told) && !problem.contains(&hash), "{problem}");
            assert!(!problem.contains("hunter2"), "{problem}");
        }
    }

    #[test]
    fn a_name_is_nothing_that_a_log_takes_for_more() {
        for good in ["a", "mia", "leo@example.com", "o.k_1+x-y"] {
            assert!(ensure_name(good).is_ok(), "{good}");
        }
        let long = "x".repeat(NAME_MAX + 1);
        for bad in
            ["", "a b", "a\nb", "a:b", "-a", "<b>", "\u{e9}a", "a\u{202e}b", "anonymous", &long]
        {
            assert!(ensure_name(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn another_password_is_another_mark() {
        let mark = |password| user("mia", "admin", password).password_mark();
        assert_ne!(mark(Some("one")), mark(Some("two")));
        assert_eq!(mark(None), None);
    }
}
