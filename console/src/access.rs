//! Access: roles, the permissions that each has, the effect of a route, and the caller of a
//! request.

use std::fmt;
use std::hint::black_box;
use std::str::FromStr;

use axum::http::Method;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// Role of a user or an API token. Each may do what those before it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Sees numbers: no single webhook.
    Viewer,
    /// Finds single webhooks, and replays dead letters.
    Support,
    /// Pauses, resumes and drops, and replays from the archive.
    Operator,
    /// Drops also what is a legal duty.
    Admin,
}

/// Permission that a route needs. Every route needs exactly one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Permission {
    /// Nothing: the login page and assets. Nobody has to be known.
    Public,
    /// See numbers: overview, lanes, shops, metrics, doctor.
    Look,
    /// See single webhooks and dead letters without bodies and headers, and the audit.
    Search,
    /// See bodies and headers as received. No role holds it: it is given to a user or token by name.
    Personal,
    /// Deliver dead letters again.
    Replay,
    /// Pause, resume, drop, replay from the archive.
    Operate,
    /// Drop webhooks of compliance topics.
    Administer,
}

/// Effect of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteEffect {
    /// GET: changes nothing.
    Read,
    /// POST: changes something. A change of the cell leaves a record in the audit.
    Change,
}

/// The user or API token that sent a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// Name, as the audit has it.
    pub name: String,
    /// Role.
    pub role: Role,
    /// True if the caller may see bodies and headers of webhooks.
    pub sees_personal_data: bool,
    /// Credential by which the caller is known.
    pub credential: Credential,
    /// Key that the forms of the caller hold; `None` for a bearer token, whose changes need none.
    pub session: Option<SessionKey>,
}

/// Key that the forms of one session hold. It is not the id of the session: a form that leaks is no
/// login.
#[derive(Clone, PartialEq, Eq)]
pub struct SessionKey([u8; 32]);

/// Credential by which a caller is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Credential {
    /// A session's cookie, which a logout ends. A browser sends it by itself, so another site could make it send a
    /// change: the origin of a change is checked.
    Session,
    /// A trusted proxy's header, or nothing at all. It comes by itself, as a cookie does, and no logout ends it.
    Ambient,
    /// A bearer token, which only a program sends that means to.
    Bearer,
}

impl Role {
    /// All roles, from the one that may least.
    pub const ALL: [Self; 4] = [Self::Viewer, Self::Support, Self::Operator, Self::Admin];

    /// Name of the role.
    pub fn name(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Support => "support",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|role| role.name() == text);
        found.ok_or_else(|| {
            format!("{text:?} is no role: use {}", Self::ALL.map(Self::name).join(", "))
        })
    }
}

impl Permission {
    /// All permissions.
    pub const ALL: [Self; 7] = [
        Self::Public,
        Self::Look,
        Self::Search,
        Self::Personal,
        Self::Replay,
        Self::Operate,
        Self::Administer,
    ];

    /// Least role that has the permission; `None` if a role alone does not decide.
    pub fn least_role(self) -> Option<Role> {
        match self {
            Self::Look => Some(Role::Viewer),
            Self::Search | Self::Replay => Some(Role::Support),
            Self::Operate => Some(Role::Operator),
            Self::Administer => Some(Role::Admin),
            Self::Public | Self::Personal => None,
        }
    }

    /// Words for a caller who lacks the permission, and for the API's document.
    pub fn description(self) -> &'static str {
        match self {
            Self::Public => "anybody",
            Self::Look => "the role viewer",
            Self::Search | Self::Replay => "the role support",
            Self::Personal => "the permission to see personal data",
            Self::Operate => "the role operator",
            Self::Administer => "the role admin",
        }
    }
}

impl RouteEffect {
    /// Method of the route.
    pub fn method(self) -> Method {
        match self {
            Self::Read => Method::GET,
            Self::Change => Method::POST,
        }
    }
}

impl SessionKey {
    /// A key that nobody can guess.
    pub fn random() -> Self {
        Self(rand::random())
    }

    /// Key of a caller without a session of its own, made from this key of the process.
    pub(crate) fn of_name(&self, name: &str) -> Self {
        let mut code =
            Hmac::<Sha256>::new_from_slice(&self.0).expect("BUG: a key may have any length");
        code.update(name.as_bytes());
        Self(code.finalize().into_bytes().into())
    }

    /// The key as the value of a form's field.
    pub(crate) fn token(&self) -> String {
        URL_SAFE_NO_PAD.encode(self.0)
    }

    /// True if a form or a header held this key.
    pub(crate) fn is_token(&self, given: &[u8]) -> bool {
        is_same(self.token().as_bytes(), given)
    }
}

// Written by hand: the key is a secret.
impl fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionKey")
    }
}

/// Compares in a time that depends on the lengths only.
pub(crate) fn is_same(one: &[u8], other: &[u8]) -> bool {
    let different = one.iter().zip(other).fold(0, |bits, (one, other)| bits | (one ^ other));
    black_box(different) == 0 && one.len() == other.len()
}

impl Caller {
    /// True if the caller has the permission.
    pub fn may(&self, permission: Permission) -> bool {
        match permission {
            Permission::Public => true,
            Permission::Personal => self.sees_personal_data,
            Permission::Look
            | Permission::Search
            | Permission::Replay
            | Permission::Operate
            | Permission::Administer => {
                permission.least_role().is_some_and(|least| self.role >= least)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(role: Role, sees_personal_data: bool) -> Caller {
        let name = role.name().to_owned();
        Caller { name, role, sees_personal_data, credential: Credential::Bearer, session: None }
    }

    #[test]
    fn a_key_fits_itself_only_and_is_not_printed() {
        let key = SessionKey::random();
        assert!(key.is_token(key.token().as_bytes()));
        assert!(!key.is_token(b"") && !key.is_token(&key.token().as_bytes()[1..]));
        assert!(!key.is_token(SessionKey::random().token().as_bytes()));
        assert_eq!(key.of_name("mia"), key.of_name("mia"));
        assert!(key.of_name("mia") != key.of_name("leo") && key.of_name("mia") != key);
        assert_eq!(format!("{key:?}"), "SessionKey");
    }

    #[test]
    fn each_role_may_what_those_before_it_may() {
        for permission in Permission::ALL {
            let may = Role::ALL.map(|role| caller(role, false).may(permission));
            assert!(may.is_sorted(), "{permission:?}: {may:?}");
        }
        assert!(!caller(Role::Viewer, true).may(Permission::Search));
        assert!(!caller(Role::Support, true).may(Permission::Operate));
        assert!(!caller(Role::Operator, true).may(Permission::Administer));
    }

    #[test]
    fn no_role_sees_personal_data_by_itself() {
        for role in Role::ALL {
            assert!(!caller(role, false).may(Permission::Personal), "{role}");
            assert!(caller(role, true).may(Permission::Personal), "{role}");
        }
    }

    #[test]
    fn a_role_is_read_from_its_name() {
        for role in Role::ALL {
            assert_eq!(role.name().parse(), Ok(role));
        }
        assert!("root".parse::<Role>().is_err_and(|told| told.contains("viewer, support")));
    }
}
