//! Authentication: who sent a request. The guard asks one [`Authenticate`] for each request of a route that is not
//! public.

use std::future::ready;
use std::pin::Pin;

use axum::http::request::Parts;

use crate::access::{Caller, Credential, Role};

/// Finding of an [`Authenticate`]: the caller, or `None` if the request names none.
pub type FoundCaller<'a> = Pin<Box<dyn Future<Output = Option<Caller>> + Send + 'a>>;

/// Finds the caller of a request from its head.
pub trait Authenticate: Send + Sync {
    /// Finds the caller. A credential that is wrong counts as none.
    fn caller<'a>(&'a self, head: &'a Parts) -> FoundCaller<'a>;
}

/// Takes everybody for one caller, without a login. For a console on loopback only: the settings
/// refuse it elsewhere.
#[derive(Debug, Clone)]
pub struct AnonymousAccess {
    caller: Caller,
}

impl AnonymousAccess {
    /// Name of the caller, in the audit too.
    pub const NAME: &str = "anonymous";

    /// Everybody has `role`. On loopback the reader can mostly read Redis too, so personal data is
    /// shown from the role support on.
    pub fn new(role: Role) -> Self {
        let caller = Caller {
            name: Self::NAME.to_owned(),
            role,
            sees_personal_data: role >= Role::Support,
            credential: Credential::Ambient,
        };
        Self { caller }
    }
}

impl Authenticate for AnonymousAccess {
    fn caller<'a>(&'a self, _head: &'a Parts) -> FoundCaller<'a> {
        Box::pin(ready(Some(self.caller.clone())))
    }
}

/// Knows nobody: every route that is not public answers 401.
#[derive(Debug, Clone, Copy)]
pub struct NoAccess;

impl Authenticate for NoAccess {
    fn caller<'a>(&'a self, _head: &'a Parts) -> FoundCaller<'a> {
        Box::pin(ready(None))
    }
}
