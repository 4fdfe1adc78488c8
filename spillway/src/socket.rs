//! Message for a user who may not open the unix socket of Redis: who the user is, whose the socket
//! is, and what to do.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use rustix::io::Errno;
use rustix::process::geteuid;

/// File with the names of users. Source: passwd(5).
const USERS: &str = "/etc/passwd";
/// File with the names of groups. Source: group(5).
const GROUPS: &str = "/etc/group";
/// Name of the user and of the group with id 0.
const ROOT: &str = "root";
/// Permission of the group to connect to a socket.
const GROUP_WRITE: u32 = 0o020;
/// Permission of the group to enter a directory.
const GROUP_ENTER: u32 = 0o010;

/// The socket, or the directory above it that this user may not enter.
#[derive(Debug)]
struct Barred {
    path: PathBuf,
    is_directory: bool,
    owner: String,
    group: String,
    mode: u32,
}

/// Message for a user who may not open the socket.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Denial {
    /// User, and path that may not be opened.
    pub what: String,
    /// Instructions to fix it.
    pub fix: String,
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.fix)
    }
}

/// Returns the message if `url` names a unix socket that this user may not open.
pub(crate) fn denial(url: &str) -> Option<Denial> {
    let path = socket_path(url)?;
    // Nothing connects here: that would wait while Redis hangs.
    if access(path, Access::WRITE_OK) != Err(Errno::ACCESS) {
        return None;
    }
    let (barred, metadata) =
        path.ancestors().find_map(|path| Some((path, fs::metadata(path).ok()?)))?;
    let groups = fs::read_to_string(GROUPS).unwrap_or_default();
    let users = fs::read_to_string(USERS).unwrap_or_default();
    let barred = Barred {
        path: barred.to_owned(),
        is_directory: metadata.is_dir(),
        owner: name_of(metadata.uid(), &users),
        group: name_of(metadata.gid(), &groups),
        mode: metadata.mode() & 0o7777,
    };
    let user = geteuid().as_raw();
    Some(message(&name_of(user, &users), user, &barred))
}

/// Path of the socket that a `REDIS_URL` names.
fn socket_path(url: &str) -> Option<&Path> {
    let rest = url.strip_prefix("unix:")?;
    let path = rest.strip_prefix("//").unwrap_or(rest);
    path.split('?').next().map(Path::new)
}

/// Name of a user or group in the text of passwd(5) or group(5), else its number.
fn name_of(id: u32, text: &str) -> String {
    let named = text.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(id)).then(|| name.to_owned())
    });
    named.unwrap_or_else(|| id.to_string())
}

fn message(user: &str, id: u32, barred: &Barred) -> Denial {
    let Barred { path, is_directory, owner, group, mode } = barred;
    let may_not = if *is_directory { "enter the directory" } else { "open redis' socket" };
    let needed = if *is_directory { GROUP_ENTER } else { GROUP_WRITE };
    let join = if group == ROOT {
        // Nobody should join the group of root.
        "; to use it without root, run redis as a user of its own, with a group that operators join"
            .to_owned()
    } else if mode & needed == 0 {
        String::new()
    } else {
        format!(
            ", or add the user to that group (usermod --append --groups {group} {user}) and log in again"
        )
    };
    let or_owner = if owner == ROOT { String::new() } else { format!(" or as {owner}") };
    let what = format!(
        "user {user} (uid {id}) may not {may_not} {}, which belongs to user {owner} and group {group} (mode \
         {mode:04o})",
        path.display()
    );
    Denial { what, fix: format!("run this as root{or_owner}{join}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_named_by_its_url_only() {
        assert_eq!(socket_path("unix:///run/a.sock"), Some(Path::new("/run/a.sock")));
        assert_eq!(socket_path("unix:///run/a.sock?db=1"), Some(Path::new("/run/a.sock")));
        assert_eq!(socket_path("redis://host/0"), None);
        assert_eq!(denial("unix:///nonexistent.sock"), None, "absent, not denied");
    }

    #[test]
    fn names_are_looked_up_by_number() {
        let groups = "root:x:0:\nbroken\nspillway:x:998:deploy\n";
        assert_eq!(name_of(998, groups), "spillway");
        assert_eq!(name_of(7, groups), "7");
    }

    #[test]
    fn joining_a_group_is_proposed_where_it_helps() {
        let barred = |mode, is_directory| Barred {
            path: "/run/spillway/redis.sock".into(),
            is_directory,
            owner: "spillway".to_owned(),
            group: "queue".to_owned(),
            mode,
        };
        let message = |user, id, barred: &Barred| message(user, id, barred).to_string();
        let told = message("deploy", 1001, &barred(0o770, false));
        let expected = "user deploy (uid 1001) may not open redis' socket /run/spillway/redis.sock, \
                        which belongs to user spillway and group queue (mode 0770): run this as root \
                        or as spillway, or add the user to that group (usermod --append --groups \
                        queue deploy) and log in again";
        assert_eq!(told, expected);
        assert!(!message("deploy", 1001, &barred(0o700, false)).contains("usermod"));
        assert!(message("deploy", 1001, &barred(0o710, true)).contains("usermod"));
        assert!(!message("deploy", 1001, &barred(0o760, true)).contains("log in again"));
    }

    #[test]
    fn nobody_is_told_to_join_the_group_of_root() {
        let barred = Barred {
            path: "/run/redis.sock".into(),
            is_directory: false,
            owner: ROOT.to_owned(),
            group: ROOT.to_owned(),
            mode: 0o770,
        };
        let Denial { fix, .. } = message("nobody", 65_534, &barred);
        assert!(fix.starts_with("run this as root; to use it without root, run redis as"), "{fix}");
        assert!(!fix.contains("usermod") && !fix.contains("root or as root"), "{fix}");
    }
}
