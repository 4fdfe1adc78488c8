//! LISTEN, LISTEN_MODE and LISTEN_GROUP: an address to listen on, and its access rights.

use super::Address;
use crate::settings::Checker;

/// File with the names of groups. Source: group(5).
const GROUPS: &str = "/etc/group";

/// Address to listen on, and access rights of its socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenEndpoint {
    /// LISTEN.
    pub address: Address,
    /// LISTEN_MODE and LISTEN_GROUP.
    pub access: SocketAccess,
}

/// Mode and group of a unix socket to bind. Those that are not set are the process's own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SocketAccess {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Group id.
    pub group: Option<u32>,
}

impl ListenEndpoint {
    /// Checks LISTEN, LISTEN_MODE and LISTEN_GROUP as given. For the last two, an empty text means
    /// not set.
    pub fn check(
        checker: &mut Checker,
        listen: &str,
        mode: Option<&str>,
        group: Option<&str>,
    ) -> Self {
        let mode = given(mode);
        let group = given(group);
        let address = noted(checker, "LISTEN", listen.parse());
        if let Some(Address::Tcp(_)) = address {
            for key in [mode.map(|_| "LISTEN_MODE"), group.map(|_| "LISTEN_GROUP")] {
                key.into_iter().for_each(|key| checker.mistake(key, "needs LISTEN=unix:/path"));
            }
        }
        let groups = || std::fs::read_to_string(GROUPS).unwrap_or_default();
        let mode = mode.and_then(|text| noted(checker, "LISTEN_MODE", parse_mode(text)));
        let group =
            group.and_then(|text| noted(checker, "LISTEN_GROUP", parse_group(text, groups)));
        Self {
            address: address.unwrap_or(Address::Tcp(([127, 0, 0, 1], 0).into())),
            access: SocketAccess { mode, group },
        }
    }
}

fn given(text: Option<&str>) -> Option<&str> {
    text.map(str::trim).filter(|text| !text.is_empty())
}

fn noted<T>(checker: &mut Checker, key: &str, parsed: Result<T, String>) -> Option<T> {
    parsed.map_err(|problem| checker.mistake(key, problem)).ok()
}

fn parse_mode(text: &str) -> Result<u32, String> {
    let is_octal = text.bytes().all(|digit| matches!(digit, b'0'..=b'7'));
    match u32::from_str_radix(text, 8) {
        Ok(mode @ 0..=0o777) if is_octal => Ok(mode),
        _ => Err(format!("{text:?} is not an octal mode from 0 to 0777, such as 0660")),
    }
}

/// Returns the id of a group, given by its name in `groups` (the text of group(5)) or as a number.
fn parse_group(text: &str, groups: impl FnOnce() -> String) -> Result<u32, String> {
    if let Ok(id) = text.parse() {
        return Ok(id);
    }
    let id_of = |line: &str| {
        let mut fields = line.split(':');
        (fields.next() == Some(text)).then(|| fields.nth(1)?.parse().ok()).flatten()
    };
    let found = groups().lines().find_map(id_of);
    found.ok_or_else(|| format!("{text:?} is neither a group of {GROUPS} nor a group id"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_is_octal_and_holds_permissions_only() {
        assert_eq!(parse_mode("0660"), Ok(0o660));
        assert_eq!(parse_mode("666"), Ok(0o666));
        for text in ["0888", "u+rw", "1777", "-660", "+660", "0o660", "99999999999"] {
            assert!(parse_mode(text).unwrap_err().contains("0660"), "{text}");
        }
    }

    #[test]
    fn a_group_is_a_name_or_a_number() {
        let groups = || "root:x:0:\nwww-data:x:33:nginx\nbroken\n".to_owned();
        assert_eq!(parse_group("www-data", groups), Ok(33));
        assert_eq!(parse_group("1000", groups), Ok(1000));
        for text in ["www", "broken", "nginx", "-1", "www-data:x"] {
            assert!(parse_group(text, groups).is_err(), "{text}");
        }
    }

    #[test]
    fn every_mistake_is_told_and_nothing_is_no_mistake() {
        const TCP: &str = "127.0.0.1:80";
        let told = |listen, mode, group| {
            let mut checker = Checker::default();
            let endpoint = ListenEndpoint::check(&mut checker, listen, mode, group);
            checker.finish(endpoint.access).map_err(|mistakes| mistakes.to_string())
        };
        for listen in [TCP, "unix:/a"] {
            assert_eq!(told(listen, None, None), Ok(SocketAccess::default()));
            assert_eq!(told(listen, Some(""), Some(" ")), Ok(SocketAccess::default()));
        }
        let access = SocketAccess { mode: Some(0o660), group: Some(0) };
        assert_eq!(told("unix:/a", Some("0660"), Some("root")), Ok(access));
        let both = told("unix:/a", Some("rw"), Some("no such group")).unwrap_err();
        assert!(both.contains("LISTEN_MODE: ") && both.contains("LISTEN_GROUP: "), "{both}");
        let of_tcp = told(TCP, Some("0660"), Some("0")).unwrap_err();
        assert_eq!(of_tcp.lines().count(), 2, "{of_tcp}");
        let all = told("nonsense", Some("rw"), Some("no such group")).unwrap_err();
        assert_eq!(all.lines().count(), 3, "{all}");
    }
}
