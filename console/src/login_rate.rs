//! Rates of logins: guessing is bounded for each network and each user.
//!
//! A user whose bucket others have emptied from elsewhere is not locked out: from a network where the user has logged in
//! lately, a bucket of its own counts, and no other. From a new network, the user waits for as long as the attack
//! lasts, and a minute more.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::peer::network;

/// Buckets of one kind that are kept at once, some 100 bytes each.
const BUCKETS_MAX: usize = 10_000;
/// Time for which a network is known after a login.
const KNOWN_FOR: Duration = Duration::from_secs(30 * 24 * 3600);
/// Letters of a name that are kept. A longer one is no user's.
const NAME_KEPT: usize = 64;
/// Attempts from one network at once, and the time after which there is one more. A team may share a network.
const OF_NETWORK: BucketSize = BucketSize { attempts: 20, refill: Duration::from_secs(30) };
/// Attempts for one user, from all networks that are not known: 1,440 a day.
const OF_USER: BucketSize = BucketSize { attempts: 10, refill: Duration::from_secs(60) };
/// Attempts for one user from a known network.
const OF_KNOWN: BucketSize = BucketSize { attempts: 10, refill: Duration::from_secs(60) };

/// Rates of logins.
#[derive(Debug)]
pub(crate) struct LoginRate(Mutex<LoginBuckets>);

#[derive(Debug)]
struct LoginBuckets {
    networks: Buckets<IpAddr>,
    users: Buckets<String>,
    /// Networks where a user has logged in, each with a bucket.
    known: Buckets<(IpAddr, String)>,
    /// Time of the last login from each of them.
    logins: HashMap<(IpAddr, String), Instant>,
}

/// Size of a bucket.
#[derive(Debug, Clone, Copy)]
struct BucketSize {
    /// Attempts at once.
    attempts: u32,
    /// Time after which there is one more.
    refill: Duration,
}

/// Buckets of one size. A key without one has a full bucket.
#[derive(Debug)]
struct Buckets<K> {
    size: BucketSize,
    /// For each key, the time at which its bucket is full again.
    full_at: HashMap<K, Instant>,
}

impl LoginRate {
    /// Full buckets.
    pub(crate) fn new() -> Self {
        Self(Mutex::new(LoginBuckets {
            networks: Buckets::new(OF_NETWORK),
            users: Buckets::new(OF_USER),
            known: Buckets::new(OF_KNOWN),
            logins: HashMap::new(),
        }))
    }

    /// Takes an attempt, before the password is looked at: attempts at the same time count too. The error is the
    /// time to wait. It is the same whether there is such a user or not.
    pub(crate) fn take(&self, client: IpAddr, user: &str, now: Instant) -> Result<(), Duration> {
        let pair = pair(client, user);
        let mut held = self.lock();
        if held.knows(&pair, now) {
            held.known.ensure(&pair, now)?;
            held.known.take(pair, now);
            return Ok(());
        }
        let (network, name) = pair;
        held.networks.ensure(&network, now)?;
        held.users.ensure(&name, now)?;
        held.networks.take(network, now);
        held.users.take(name, now);
        Ok(())
    }

    /// Gives back the attempt that was right, and knows the network from now on.
    pub(crate) fn on_login(&self, client: IpAddr, user: &str, now: Instant) {
        let pair = pair(client, user);
        let mut held = self.lock();
        if !held.knows(&pair, now) {
            held.networks.give_back(&pair.0);
            held.users.give_back(&pair.1);
        }
        held.known.full_at.remove(&pair);
        if held.logins.len() >= BUCKETS_MAX && !held.logins.contains_key(&pair) {
            let oldest = held.logins.iter().min_by_key(|(_, login)| **login);
            if let Some(oldest) = oldest.map(|(pair, _)| pair.clone()) {
                held.logins.remove(&oldest);
            }
        }
        held.logins.insert(pair, now);
    }

    fn lock(&self) -> MutexGuard<'_, LoginBuckets> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LoginBuckets {
    /// True if the user has logged in from this network lately.
    fn knows(&self, pair: &(IpAddr, String), now: Instant) -> bool {
        let login = self.logins.get(pair);
        login.is_some_and(|login| now.saturating_duration_since(*login) < KNOWN_FOR)
    }
}

impl<K: Hash + Eq + Clone> Buckets<K> {
    fn new(size: BucketSize) -> Self {
        Self { size, full_at: HashMap::new() }
    }

    /// Refuses if the bucket is empty. The error is the time until it holds an attempt.
    fn ensure(&self, key: &K, now: Instant) -> Result<(), Duration> {
        let capacity = self.size.refill * (self.size.attempts - 1);
        let missing = self
            .full_at
            .get(key)
            .map_or(Duration::ZERO, |full_at| full_at.saturating_duration_since(now));
        match missing.checked_sub(capacity) {
            None | Some(Duration::ZERO) => Ok(()),
            Some(wait) => Err(wait),
        }
    }

    fn take(&mut self, key: K, now: Instant) {
        self.make_room(&key, now);
        let full_at = self.full_at.entry(key).or_insert(now);
        *full_at = (*full_at).max(now) + self.size.refill;
    }

    fn give_back(&mut self, key: &K) {
        if let Some(full_at) = self.full_at.get_mut(key) {
            *full_at -= self.size.refill;
        }
    }

    /// Forgets full buckets, and else the fullest one: an emptied bucket is forgotten last.
    fn make_room(&mut self, key: &K, now: Instant) {
        if self.full_at.len() < BUCKETS_MAX || self.full_at.contains_key(key) {
            return;
        }
        self.full_at.retain(|_, full_at| *full_at > now);
        if self.full_at.len() >= BUCKETS_MAX {
            let fullest = self.full_at.iter().min_by_key(|(_, full_at)| **full_at);
            if let Some(fullest) = fullest.map(|(key, _)| key.clone()) {
                self.full_at.remove(&fullest);
            }
        }
    }
}

/// Network of a client and name of a user.
fn pair(client: IpAddr, user: &str) -> (IpAddr, String) {
    (network(client), user.chars().take(NAME_KEPT).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// Attempts that are taken until one is refused.
    fn taken(rate: &LoginRate, client: &str, user: &str, now: Instant) -> usize {
        (0..1000).take_while(|_| rate.take(address(client), user, now).is_ok()).count()
    }

    #[test]
    fn guessing_is_bounded_for_a_user_over_all_networks() {
        let rate = LoginRate::new();
        let start = Instant::now();
        let guess = |network: u32, now| rate.take(IpAddr::V4(network.into()), "mia", now).is_ok();
        let at_once = (0..500).filter(|network| guess(*network, start)).count();
        assert_eq!(at_once, 10);
        let of_a_day = (0..86_400_u32)
            .filter(|second| guess(1000 + second, start + Duration::from_secs(u64::from(*second))));
        assert!(of_a_day.count() <= 1_440);
    }

    #[test]
    fn guessing_is_bounded_for_a_network_over_all_users() {
        let rate = LoginRate::new();
        let now = Instant::now();
        let guess = |client: &str, user: usize| rate.take(address(client), &user.to_string(), now);
        assert_eq!((0..500).filter(|user| guess("192.0.2.1", *user).is_ok()).count(), 20);
        assert!(guess("192.0.2.2", 1000).is_ok(), "another network");
        // Addresses of one /64, and an IPv4 address in the form of IPv6, are one network.
        let of_one = (0..500).filter(|user| guess(&format!("2001:db8::{user:x}"), *user).is_ok());
        assert_eq!(of_one.count(), 20);
        assert!(guess("::ffff:192.0.2.1", 1001).is_err());
    }

    #[test]
    fn nobody_is_locked_out_of_a_network_that_is_known() {
        let rate = LoginRate::new();
        let start = Instant::now();
        let office = "192.0.2.1";
        let attacker = "203.0.113.9";
        rate.take(address(office), "mia", start).unwrap();
        rate.on_login(address(office), "mia", start);
        assert_eq!(taken(&rate, attacker, "mia", start), 10, "the login was given back");
        assert!(rate.take(address("198.51.100.7"), "mia", start).is_err());
        // From the office it goes on, with a bound of its own.
        assert_eq!(taken(&rate, office, "mia", start), 10);
        rate.on_login(address(office), "mia", start);
        assert_eq!(taken(&rate, office, "mia", start), 10);
        assert_eq!(taken(&rate, office, "leo", start), 10, "leo's own bound");
    }

    #[test]
    fn a_refusal_says_when_and_is_over_then() {
        let rate = LoginRate::new();
        let start = Instant::now();
        let client = address("192.0.2.1");
        taken(&rate, "192.0.2.1", "mia", start);
        let wait = rate.take(client, "mia", start).unwrap_err();
        assert!(wait <= Duration::from_secs(60) && !wait.is_zero(), "{wait:?}");
        assert!(rate.take(client, "mia", start + wait).is_ok());
        assert!(rate.take(client, "mia", start + wait).is_err());
        // What is refused does not make it longer.
        assert!(rate.take(client, "mia", start + 2 * Duration::from_secs(60)).is_ok());
    }

    #[test]
    fn the_buckets_are_bounded_and_an_empty_one_is_forgotten_last() {
        let mut buckets = Buckets::new(OF_USER);
        let now = Instant::now();
        (0..10).for_each(|_| buckets.take(0, now));
        (1..12_000).for_each(|user| buckets.take(user, now));
        assert!(buckets.full_at.len() <= BUCKETS_MAX);
        assert!(buckets.ensure(&0, now).is_err());
        assert!(buckets.ensure(&11_999, now).is_ok());
    }

    #[test]
    fn a_network_is_known_for_thirty_days_after_the_last_login() {
        let rate = LoginRate::new();
        let office = address("192.0.2.1");
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let login = |now| {
            rate.take(office, "mia", now).expect("the bucket is full");
            rate.on_login(office, "mia", now);
        };
        login(start);
        let renewed = start + KNOWN_FOR / 2;
        login(renewed);
        let end = renewed + Duration::from_secs(30 * 24 * 3600);
        assert_eq!(taken(&rate, "203.0.113.9", "mia", end - second), 10);
        assert!(rate.take(office, "mia", end - second).is_ok(), "it is still known");
        assert!(rate.take(office, "mia", end).is_err(), "the bucket of all networks counts again");
    }

    #[test]
    fn the_known_networks_are_bounded_and_the_oldest_login_is_forgotten_first() {
        let rate = LoginRate::new();
        let office = address("192.0.2.1");
        let mut now = Instant::now();
        let mut login = |user: usize| {
            now += Duration::from_millis(1);
            rate.on_login(office, &user.to_string(), now);
            now
        };
        for user in 0..BUCKETS_MAX {
            login(user);
        }
        // The first user logs in again, so the second one is the oldest.
        login(0);
        let now = login(BUCKETS_MAX);
        let held = rate.lock();
        assert_eq!(held.logins.len(), BUCKETS_MAX);
        let knows = |user: usize| held.knows(&pair(office, &user.to_string()), now);
        assert_eq!([0, 1, 2, BUCKETS_MAX].map(knows), [true, false, true, true]);
    }
}
