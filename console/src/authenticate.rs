//! Authentication: who sent a request. The guard asks one [`Authenticate`] for each request of a route that is not
//! public.

use std::future::ready;
use std::pin::Pin;
use std::sync::Arc;

use axum::http::HeaderName;
use axum::http::request::Parts;

use crate::access::{Caller, Credential, Role, SessionKey};
use crate::peer::PeerAddress;

/// Finding of an [`Authenticate`]: the caller, or `None` if the request names none.
pub type FoundCaller<'a> = Pin<Box<dyn Future<Output = Option<Caller>> + Send + 'a>>;

/// Finds the caller of a request from its head.
pub trait Authenticate: Send + Sync {
    /// Finds the caller. A credential that is wrong counts as none.
    fn caller<'a>(&'a self, head: &'a Parts) -> FoundCaller<'a>;

    /// True if there is a login page, to which a browser without a session is sent.
    fn has_login(&self) -> bool {
        false
    }
}

/// Asks several, in this order. The first one that knows the caller decides.
pub struct FirstOf(pub Vec<Arc<dyn Authenticate>>);

impl Authenticate for FirstOf {
    fn caller<'a>(&'a self, head: &'a Parts) -> FoundCaller<'a> {
        Box::pin(async move {
            for one in &self.0 {
                if let Some(caller) = one.caller(head).await {
                    return Some(caller);
                }
            }
            None
        })
    }

    fn has_login(&self) -> bool {
        self.0.iter().any(|one| one.has_login())
    }
}

/// Takes everybody for one caller, without a login. For a console on loopback only: the settings
/// refuse it elsewhere, and [`DirectAccess`] those who come by a proxy.
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
            session: Some(SessionKey::random()),
        };
        Self { caller }
    }
}

impl Authenticate for AnonymousAccess {
    fn caller<'a>(&'a self, _head: &'a Parts) -> FoundCaller<'a> {
        Box::pin(ready(Some(self.caller.clone())))
    }
}

/// Asks another only about those who come from this machine, and not by a proxy on it.
#[derive(Debug, Clone)]
pub struct DirectAccess<A>(pub A);

impl<A: Authenticate> Authenticate for DirectAccess<A> {
    fn caller<'a>(&'a self, head: &'a Parts) -> FoundCaller<'a> {
        match is_direct(head) {
            true => self.0.caller(head),
            false => Box::pin(ready(None)),
        }
    }

    fn has_login(&self) -> bool {
        self.0.has_login()
    }
}

/// True if a request comes from loopback, and no proxy has left a trace in it.
fn is_direct(head: &Parts) -> bool {
    let peer = head.extensions.get::<PeerAddress>();
    let is_local = peer.is_some_and(|PeerAddress(peer)| peer.ip().to_canonical().is_loopback());
    is_local && !head.headers.keys().any(is_by_proxy)
}

/// True for a header that a proxy adds.
fn is_by_proxy(name: &HeaderName) -> bool {
    let name = name.as_str();
    name.starts_with("x-forwarded-") || ["forwarded", "via", "x-real-ip"].contains(&name)
}

/// Knows nobody: every route that is not public answers 401.
#[derive(Debug, Clone, Copy)]
pub struct NoAccess;

impl Authenticate for NoAccess {
    fn caller<'a>(&'a self, _head: &'a Parts) -> FoundCaller<'a> {
        Box::pin(ready(None))
    }
}

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::*;

    #[tokio::test]
    async fn the_first_that_knows_the_caller_decides() {
        let (head, ()) = Request::new(()).into_parts();
        let viewer: Arc<dyn Authenticate> = Arc::new(AnonymousAccess::new(Role::Viewer));
        let admin: Arc<dyn Authenticate> = Arc::new(AnonymousAccess::new(Role::Admin));
        let all = FirstOf(vec![Arc::new(NoAccess), viewer, admin]);
        let found = all.caller(&head).await.expect("the second knows everybody");
        assert_eq!(found.role, Role::Viewer);
        assert!(!all.has_login());
        assert_eq!(FirstOf(Vec::new()).caller(&head).await, None);
    }

    #[tokio::test]
    async fn nobody_who_comes_by_a_proxy_is_anonymous() {
        let access = DirectAccess(AnonymousAccess::new(Role::Viewer));
        let is_known = async |peer: &str, header: &str| {
            let mut request = Request::builder().header(header, "x").body(()).unwrap();
            let peer: std::net::IpAddr = peer.parse().unwrap();
            request.extensions_mut().insert(PeerAddress((peer, 4242).into()));
            access.caller(&request.into_parts().0).await.is_some()
        };
        for peer in ["127.0.0.1", "::1", "::ffff:127.0.0.1"] {
            assert!(is_known(peer, "accept").await, "{peer}");
        }
        assert!(!is_known("192.0.2.1", "accept").await);
        for header in ["Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP", "Via"] {
            assert!(!is_known("127.0.0.1", header).await, "{header}");
        }
        let (head, ()) = Request::new(()).into_parts();
        assert!(access.caller(&head).await.is_none(), "its peer is not known");
    }

    #[tokio::test]
    async fn two_processes_give_anonymous_callers_different_keys() {
        let (head, ()) = Request::new(()).into_parts();
        let one = AnonymousAccess::new(Role::Admin);
        let other = AnonymousAccess::new(Role::Admin);
        let key = |caller: Option<Caller>| caller.and_then(|caller| caller.session);
        let first = key(one.caller(&head).await);
        assert!(first.is_some() && first == key(one.caller(&head).await));
        assert!(first != key(other.caller(&head).await));
    }
}
