//! Passwords as Argon2id hashes, in the PHC string format.

use std::fmt;
use std::str::FromStr;

use argon2::{Algorithm, Argon2, Params, Version};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;

use crate::access::is_same;

/// Fewest characters of a password.
pub const LENGTH_MIN: usize = 12;
/// Most bytes of a password.
pub const LENGTH_MAX: usize = 1024;
const _: () = assert!(LENGTH_MIN < LENGTH_MAX, "some passwords are good");
/// Bytes of a salt that we make.
const SALT_BYTES: usize = 16;
/// Bytes of a hash that we make.
const HASH_BYTES: usize = 32;
/// Bounds for the parameters of a hash that someone else made: 64 MiB, 16 passes, 8 lanes. Nobody has to be known to have
/// a password checked, so a mistake in the file must not stop the process: its unit has 512 MiB.
const MEMORY_KIB_MAX: u32 = 64 << 10;
const PASSES_MAX: u32 = 16;
const LANES_MAX: u32 = 8;

/// Form that is expected.
const FORM: &str = "is no Argon2id hash such as $argon2id$v=19$m=19456,t=2,p=1$salt$hash";

/// Problem of a hash that takes more memory.
const TOO_MUCH: &str = "takes more than 64 MiB to check (m=65536): set the password again with `spillway console user password`";

/// Argon2id hash of a password.
#[derive(Clone, PartialEq, Eq)]
pub struct PasswordHash {
    params: Params,
    salt: Vec<u8>,
    hash: Vec<u8>,
}

impl PasswordHash {
    /// Hash of a password, with a new salt. It takes some 20 MB and as many milliseconds.
    pub fn of(password: &[u8]) -> Self {
        Self::with(Params::DEFAULT, password)
    }

    /// Hash with other costs.
    pub(crate) fn with(params: Params, password: &[u8]) -> Self {
        let salt = rand::random::<[u8; SALT_BYTES]>().to_vec();
        let mut hash = vec![0; HASH_BYTES];
        let made = argon2(&params).hash_password_into(password, &salt, &mut hash);
        made.expect("BUG: the lengths are those of Argon2");
        Self { params, salt, hash }
    }

    /// Memory that a check takes, in MiB.
    pub(crate) fn memory_mib(&self) -> u32 {
        self.params.m_cost().div_ceil(1 << 10)
    }

    /// True if this is the hash of the password. It takes as long as [`Self::of`].
    pub(crate) fn is_of(&self, password: &[u8]) -> bool {
        let mut hash = vec![0; self.hash.len()];
        let made = argon2(&self.params).hash_password_into(password, &self.salt, &mut hash);
        made.is_ok() && is_same(&hash, &self.hash)
    }
}

fn argon2(params: &Params) -> Argon2<'static> {
    Argon2::new(Algorithm::Argon2id, Version::V0x13, params.clone())
}

impl FromStr for PasswordHash {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let parts: Vec<&str> = text.split('$').collect();
        let ["", "argon2id", "v=19", costs, salt, hash] = parts[..] else { return Err(FORM) };
        let decoded = |text: &str| STANDARD_NO_PAD.decode(text).map_err(|_| FORM);
        let salt = decoded(salt)?;
        let hash = decoded(hash)?;
        if !(8..=64).contains(&salt.len()) || !(16..=64).contains(&hash.len()) {
            return Err(FORM);
        }
        let mut costs = costs.split(',');
        let mut cost = |name: &str, max: u32| {
            let value = costs.next()?.strip_prefix(name)?.strip_prefix('=')?;
            value.parse::<u32>().ok().filter(|value| *value <= max)
        };
        let memory = cost("m", u32::MAX).ok_or(FORM)?;
        let passes = cost("t", PASSES_MAX).ok_or(FORM)?;
        let lanes = cost("p", LANES_MAX).ok_or(FORM)?;
        if costs.next().is_some() {
            return Err(FORM);
        }
        if memory > MEMORY_KIB_MAX {
            return Err(TOO_MUCH);
        }
        let params = Params::new(memory, passes, lanes, None).map_err(|_| FORM)?;
        Ok(Self { params, salt, hash })
    }
}

impl fmt::Display for PasswordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let costs = &self.params;
        write!(f, "$argon2id$v=19$m={},t={},p={}", costs.m_cost(), costs.t_cost(), costs.p_cost())?;
        let salt = STANDARD_NO_PAD.encode(&self.salt);
        write!(f, "${salt}${}", STANDARD_NO_PAD.encode(&self.hash))
    }
}

// Written by hand: the hash is a secret.
impl fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PasswordHash")
    }
}

/// Hash that costs next to nothing, for tests.
#[cfg(test)]
pub(crate) fn cheap(password: &str) -> PasswordHash {
    let params = Params::new(Params::MIN_M_COST, 1, 1, None).expect("good costs");
    PasswordHash::with(params, password.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_fits_its_password_only_and_survives_the_file() {
        let hash = cheap("correct horse battery");
        let read: PasswordHash = hash.to_string().parse().expect("it was written by us");
        assert_eq!(read, hash);
        assert!(read.is_of(b"correct horse battery"));
        assert!(!read.is_of(b"correct horse batter") && !read.is_of(b""));
        assert_ne!(cheap("same"), cheap("same"), "each has a salt of its own");
        assert_eq!(format!("{hash:?}"), "PasswordHash");
    }

    /// Source: `echo -n "password" | argon2 "somesalt" -id -t 2 -m 16 -p 1 -l 32`, as in the tests of the
    /// reference implementation (phc-winner-argon2, src/test.c).
    #[test]
    fn the_reference_vector_fits() {
        let known = "$argon2id$v=19$m=65536,t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc";
        let known: PasswordHash = known.parse().expect("a PHC string");
        assert!(known.is_of(b"password") && !known.is_of(b"Password"));
    }

    #[test]
    fn a_hash_that_would_cost_too_much_or_too_little_is_refused() {
        let of = |costs: &str| {
            format!(
                "$argon2id$v=19${costs}$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc"
            )
        };
        assert!(of("m=19456,t=2,p=1").parse::<PasswordHash>().is_ok());
        for costs in [
            "m=99999999999,t=2,p=1",
            "m=19456,t=999,p=1",
            "m=19456,t=2,p=99",
            "m=1,t=1,p=1",
            "m=19456,t=2",
            "m=19456,t=2,p=1,x=1",
            "t=2,m=19456,p=1",
        ] {
            assert_eq!(of(costs).parse::<PasswordHash>(), Err(FORM), "{costs}");
        }
        for costs in ["m=65537,t=2,p=1", "m=262144,t=2,p=1"] {
            assert_eq!(of(costs).parse::<PasswordHash>(), Err(TOO_MUCH), "{costs}");
        }
        for text in [
            "",
            "*",
            "$argon2i$v=19$m=19456,t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5Q",
            "$2b$12$abc",
        ] {
            assert_eq!(text.parse::<PasswordHash>(), Err(FORM), "{text}");
        }
    }
}
