//! A proxy in front that knows its users: its header is believed when it comes from a listed address, and from no other.

use std::future::ready;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName};

use crate::access::{Caller, Credential, SessionKey};
use crate::authenticate::{Authenticate, FoundCaller};
use crate::peer::PeerAddress;
use crate::users::Users;

/// Header in which each proxy adds the address that it was asked from.
const FORWARDED_FOR: &str = "x-forwarded-for";
/// Time from one warning of a proxy that is not listed to the next.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// Addresses of proxies that are believed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TrustedProxies(Vec<AddressRange>);

/// Time of the last warning of a proxy that is not listed. A client can write the header too, so they are bounded.
#[derive(Debug, Default)]
pub(crate) struct ProxyWarning(Mutex<Option<Instant>>);

/// Addresses that share their first bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct AddressRange {
    first: IpAddr,
    bits: u32,
}

/// Knows a caller by the header of a trusted proxy. The user has to be in the file of users: the proxy says
/// who it is, and the file what they may.
pub struct ProxyAccess {
    users: Arc<Users>,
    proxies: TrustedProxies,
    header: HeaderName,
    /// Key from which that of each user's forms is made.
    key: SessionKey,
}

impl TrustedProxies {
    /// Reads addresses and ranges, such as `127.0.0.1` or `10.1.0.0/16`, separated by commas.
    ///
    /// # Errors
    /// A sentence about the first one that is neither.
    pub fn parse(text: &str) -> Result<Self, String> {
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        parts.map(str::parse::<AddressRange>).collect::<Result<Vec<_>, _>>().map(Self)
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if the peer is one of them.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|range| range.contains(address))
    }

    /// True if the peer seems to be a proxy, and is none of these.
    pub(crate) fn miss(&self, headers: &HeaderMap, peer: IpAddr) -> bool {
        !self.contains(peer) && headers.contains_key(FORWARDED_FOR)
    }

    /// Address of the client. Behind a trusted proxy it is the last one that no trusted proxy has: those before it are
    /// the client's own words.
    pub(crate) fn client(&self, headers: &HeaderMap, peer: IpAddr) -> IpAddr {
        if !self.contains(peer) {
            return peer.to_canonical();
        }
        let values = headers.get_all(FORWARDED_FOR).into_iter();
        let values: Vec<&str> = values.filter_map(|value| value.to_str().ok()).collect();
        let mut nearest = peer;
        for text in values.iter().rev().flat_map(|value| value.rsplit(',')) {
            let Ok(address) = text.trim().parse::<IpAddr>() else { break };
            nearest = address;
            if !self.contains(address) {
                break;
            }
        }
        nearest.to_canonical()
    }
}

impl ProxyWarning {
    /// True if a warning may be logged now; then the next one has to wait.
    pub(crate) fn take_turn(&self, now: Instant) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = last.is_none_or(|last| now.saturating_duration_since(last) >= WARN_EVERY);
        if is_due {
            *last = Some(now);
        }
        is_due
    }
}

impl AddressRange {
    fn contains(&self, address: IpAddr) -> bool {
        match (self.first, address) {
            (IpAddr::V4(first), IpAddr::V4(address)) => {
                let different = u32::from(first) ^ u32::from(address);
                different.leading_zeros() >= self.bits
            }
            (IpAddr::V6(first), IpAddr::V6(address)) => {
                let different = u128::from(first) ^ u128::from(address);
                different.leading_zeros() >= self.bits
            }
            _ => false,
        }
    }
}

impl FromStr for AddressRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is neither an address nor a range such as 10.1.0.0/16");
        let (first, bits) = match text.split_once('/') {
            Some((first, bits)) => (first, Some(bits.parse::<u32>().map_err(|_| wrong())?)),
            None => (text, None),
        };
        let first: IpAddr = first.parse().map_err(|_| wrong())?;
        let all = if first.is_ipv4() { 32 } else { 128 };
        let bits = bits.unwrap_or(all);
        if bits == 0 {
            return Err(format!("{text:?} is everybody: name the addresses of your proxies"));
        }
        if bits > all {
            return Err(wrong());
        }
        // A range is written as it is; a single address may be one of IPv4 in the form of IPv6.
        let first = if bits == all { first.to_canonical() } else { first };
        let bits = if bits == all && first.is_ipv4() { 32 } else { bits };
        Ok(Self { first, bits })
    }
}

impl ProxyAccess {
    /// Believes `header` from these proxies.
    pub fn new(users: Arc<Users>, proxies: TrustedProxies, header: HeaderName) -> Self {
        Self { users, proxies, header, key: SessionKey::random() }
    }

    fn find(&self, head: &Parts) -> Option<Caller> {
        let PeerAddress(peer) = head.extensions.get::<PeerAddress>()?;
        if !self.proxies.contains(peer.ip()) {
            return None;
        }
        let mut named = head.headers.get_all(&self.header).into_iter();
        // With two of them, one may be the client's: the proxy did not remove it.
        let name = named.next()?;
        if named.next().is_some() {
            return None;
        }
        let user = self.users.find(name.to_str().ok()?.trim())?;
        let key = self.key.of_name(&user.name);
        Some(user.caller(Credential::Ambient, key))
    }
}

impl Authenticate for ProxyAccess {
    fn caller<'a>(&'a self, head: &'a Parts) -> FoundCaller<'a> {
        Box::pin(ready(self.find(head)))
    }
}

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::*;
    use crate::access::Role;
    use crate::users::UserList;

    fn head(peer: &str, headers: &[(&str, &str)]) -> Parts {
        let mut request = Request::new(());
        let peer: IpAddr = peer.parse().unwrap();
        request.extensions_mut().insert(PeerAddress((peer, 4242).into()));
        for (name, value) in headers {
            let name: HeaderName = name.parse().unwrap();
            request.headers_mut().append(name, value.parse().unwrap());
        }
        request.into_parts().0
    }

    fn access() -> ProxyAccess {
        let users = UserList::parse("mia:support:*\nleo:admin+personal:*").unwrap();
        let proxies = TrustedProxies::parse("127.0.0.1, 10.1.0.0/16, 2001:db8::/32").unwrap();
        let header = HeaderName::from_static("x-user");
        ProxyAccess::new(Arc::new(Users::new(users)), proxies, header)
    }

    #[tokio::test]
    async fn only_a_listed_address_says_who_it_is() {
        let access = access();
        let name = async |peer: &str, headers: &[(&str, &str)]| {
            access.caller(&head(peer, headers)).await.map(|caller| caller.name)
        };
        let mia = [("X-User", "mia")];
        for peer in ["127.0.0.1", "10.1.200.3", "::ffff:10.1.0.1", "2001:db8:1::1"] {
            assert_eq!(name(peer, &mia).await.as_deref(), Some("mia"), "{peer}");
        }
        for peer in ["127.0.0.2", "10.2.0.1", "::1", "2001:db9::1"] {
            assert_eq!(name(peer, &mia).await, None, "{peer}");
        }
        // A proxy that is asked by a client with a header of its own.
        assert_eq!(name("10.1.0.1", &[("x-user", "leo"), ("x-user", "mia")]).await, None);
        for unknown in ["eve", "", "mia,leo", "MIA", "mia leo"] {
            assert_eq!(name("10.1.0.1", &[("x-user", unknown)]).await, None, "{unknown}");
        }
        assert_eq!(name("10.1.0.1", &[]).await, None);
        assert_eq!(name("10.1.0.1", &[("x-forwarded-for", "127.0.0.1")]).await, None);
    }

    #[tokio::test]
    async fn a_caller_has_the_role_of_the_file_of_users() {
        let access = access();
        let grant = async |headers: &[(&str, &str)]| {
            let caller = access.caller(&head("127.0.0.1", headers)).await;
            caller.map(|caller| (caller.role, caller.sees_personal_data))
        };
        assert_eq!(grant(&[("x-user", "mia")]).await, Some((Role::Support, false)));
        assert_eq!(grant(&[("x-user", "leo")]).await, Some((Role::Admin, true)));
        // No other header gives a role.
        let claimed = [("x-user", "mia"), ("x-role", "admin"), ("x-user-role", "admin")];
        assert_eq!(grant(&claimed).await, Some((Role::Support, false)));
    }

    #[tokio::test]
    async fn without_an_address_nobody_is_known() {
        let request = Request::builder().header("x-user", "mia").body(()).unwrap();
        assert_eq!(access().caller(&request.into_parts().0).await, None);
    }

    #[tokio::test]
    async fn each_user_has_a_key_of_their_own() {
        let access = access();
        let key = async |name: &str| {
            let caller = access.caller(&head("127.0.0.1", &[("x-user", name)])).await;
            caller.and_then(|caller| caller.session)
        };
        let known = access.caller(&head("127.0.0.1", &[("x-user", "mia")])).await;
        let known = known.map(|caller| caller.credential);
        assert_eq!(known, Some(Credential::Ambient), "no logout ends it");
        let mia = key("mia").await;
        assert!(mia.is_some() && mia == key("mia").await && mia != key("leo").await);
    }

    #[test]
    fn the_client_is_the_last_address_that_is_not_ours() {
        let proxies = access().proxies;
        let client = |peer: &str, forwarded: &[&str]| {
            let headers: Vec<_> = forwarded.iter().map(|value| (FORWARDED_FOR, *value)).collect();
            let head = head(peer, &headers);
            proxies.client(&head.headers, peer.parse().unwrap()).to_string()
        };
        assert_eq!(client("203.0.113.9", &["192.0.2.1"]), "203.0.113.9", "no proxy of ours");
        assert_eq!(client("127.0.0.1", &["192.0.2.1"]), "192.0.2.1");
        assert_eq!(client("127.0.0.1", &["6.6.6.6, 192.0.2.1, 10.1.0.7"]), "192.0.2.1");
        assert_eq!(client("127.0.0.1", &["6.6.6.6", "192.0.2.1"]), "192.0.2.1");
        assert_eq!(client("127.0.0.1", &[]), "127.0.0.1");
        assert_eq!(client("127.0.0.1", &["6.6.6.6, unknown"]), "127.0.0.1");
    }

    #[test]
    fn a_proxy_that_is_not_listed_is_warned_of_once_a_minute() {
        let proxies = access().proxies;
        let miss = |peer: &str, headers: &[(&str, &str)]| {
            proxies.miss(&head(peer, headers).headers, peer.parse().unwrap())
        };
        let forwarded = [(FORWARDED_FOR, "192.0.2.1")];
        assert!(miss("203.0.113.9", &forwarded) && !miss("203.0.113.9", &[]));
        assert!(!miss("127.0.0.1", &forwarded));
        let warning = ProxyWarning::default();
        let now = Instant::now();
        let turns =
            [0, 1, 59, 60, 61, 120].map(|s| warning.take_turn(now + Duration::from_secs(s)));
        assert_eq!(turns, [true, false, false, true, false, true]);
    }

    #[test]
    fn a_range_is_checked() {
        let told = |text: &str| TrustedProxies::parse(text).err().unwrap_or_default();
        assert_eq!(told("10.0.0.0/8, ::1"), "");
        assert!(TrustedProxies::parse("").is_ok_and(|none| none.is_empty()));
        assert!(told("0.0.0.0/0").contains("everybody") && told("::/0").contains("everybody"));
        for bad in ["10.0.0.0/33", "::/129", "10.0.0", "proxy", "10.0.0.0/x", "10.0.0.0/"] {
            assert!(told(bad).contains("is neither"), "{bad}");
        }
    }
}
