//! Listeners: a TCP address, a unix socket, or sockets passed by systemd.

use std::fmt;
use std::fs::Permissions;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use listenfd::ListenFd;
use tokio::net::{TcpListener, TcpSocket, UnixListener, UnixSocket};

use crate::start::Misconfigured;

mod endpoint;

pub use endpoint::{ListenEndpoint, SocketAccess};

/// Connections that wait to be accepted: as many as the kernel allows one listener by default
/// (net.core.somaxconn). When this queue is full, a new client gets no answer for a second, or
/// takes itself for connected. 1024, tokio's default, was not enough for 10,000 at once.
const BACKLOG: u32 = 4096;

/// `FileDescriptorName=` of a socket for TLS.
const TLS_NAME: &str = "https";

/// An address to listen on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// TCP address, such as `127.0.0.1:8080`.
    Tcp(SocketAddr),
    /// Path of a unix socket, such as `unix:/run/spillway-receiver.sock`.
    Unix(PathBuf),
}

/// A bound listener.
#[derive(Debug)]
pub enum Listener {
    /// TCP.
    Tcp(TcpListener),
    /// A unix socket.
    Unix(UnixListener),
    /// TCP, for TLS.
    Tls(TcpListener),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = PathBuf::from(path);
            return if path.is_absolute() {
                Ok(Self::Unix(path))
            } else {
                Err(format!("{text:?}: the path of a unix socket must be absolute"))
            };
        }
        let parsed = text.parse().map(Self::Tcp);
        parsed
            .map_err(|_| format!("{text:?} is not an address such as 127.0.0.1:8080 or unix:/path"))
    }
}

impl Listener {
    /// Takes every socket that systemd passed. Binds `endpoint` if it passed none, and `tls` if it
    /// passed none with the name `https`.
    ///
    /// # Errors
    /// When an address cannot be bound. The text names the setting to change.
    pub async fn all(
        endpoint: &ListenEndpoint,
        tls: Option<SocketAddr>,
    ) -> anyhow::Result<Vec<Self>> {
        let mut listeners = from_systemd()?;
        let has_tls = listeners.iter().any(|listener| matches!(listener, Self::Tls(_)));
        if has_tls && tls.is_none() {
            let problem = "is not set, and systemd passed a socket with the name https";
            return Err(Misconfigured(format!("LISTEN_TLS: {problem}")).into());
        }
        if listeners.is_empty() {
            listeners.push(Self::bind(endpoint)?);
        }
        if let Some(address) = tls.filter(|_| !has_tls) {
            let listener =
                listen(address).map_err(|error| cannot_listen("LISTEN_TLS", &address, &error))?;
            listeners.push(Self::Tls(listener));
        }
        Ok(listeners)
    }

    fn bind(endpoint: &ListenEndpoint) -> anyhow::Result<Self> {
        match &endpoint.address {
            Address::Tcp(address) => match listen(*address) {
                Ok(listener) => Ok(Self::Tcp(listener)),
                Err(error) => Err(cannot_listen("LISTEN", address, &error)),
            },
            Address::Unix(path) => {
                make_way(path)?;
                match listen_at(path, endpoint.access) {
                    Ok(listener) => Ok(Self::Unix(listener)),
                    Err(error) => Err(cannot_listen("LISTEN", &path.display(), &error)),
                }
            }
        }
    }
}

/// Shows the address that it listens on, as the kernel reports it.
impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(listener) | Self::Tls(listener) => {
                if matches!(self, Self::Tls(_)) {
                    f.write_str("https://")?;
                }
                match listener.local_addr() {
                    Ok(address) => address.fmt(f),
                    Err(_) => f.write_str("a TCP socket without an address"),
                }
            }
            Self::Unix(listener) => {
                let address = listener.local_addr().ok();
                match address.as_ref().and_then(|address| address.as_pathname()) {
                    Some(path) => write!(f, "unix:{}", path.display()),
                    None => f.write_str("a unix socket without a path"),
                }
            }
        }
    }
}

/// Failure of an address. Its exit code lets a supervisor try again: a port may be free soon.
fn cannot_listen(key: &str, place: &dyn fmt::Display, error: &io::Error) -> anyhow::Error {
    let hint = match error.kind() {
        io::ErrorKind::AddrInUse => "; stop the process that uses it, or set another address",
        io::ErrorKind::AddrNotAvailable => "; set an address of this machine",
        _ => "; set another address",
    };
    anyhow::anyhow!("{key}: cannot listen on {place}: {error}{hint}")
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // Like tokio's own bind: a port is free even if the kernel remembers its last connections.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Binds a unix socket and listens. The mode and group are set in between, while no client can
/// connect.
fn listen_at(path: &Path, access: SocketAccess) -> io::Result<UnixListener> {
    let socket = UnixSocket::new_stream()?;
    socket.bind(path)?;
    let listening = set_access(path, access).and_then(|()| socket.listen(BACKLOG));
    if listening.is_err() {
        // The socket was created here, and no process listens on it.
        std::fs::remove_file(path).ok();
    }
    listening
}

fn set_access(path: &Path, access: SocketAccess) -> io::Result<()> {
    if access.group.is_some() {
        let named = |error: io::Error| {
            io::Error::new(error.kind(), format!("LISTEN_GROUP cannot be set: {error}"))
        };
        std::os::unix::fs::chown(path, None, access.group).map_err(named)?;
    }
    match access.mode {
        Some(mode) => std::fs::set_permissions(path, Permissions::from_mode(mode)),
        None => Ok(()),
    }
}

fn from_systemd() -> anyhow::Result<Vec<Listener>> {
    // Source: sd_listen_fds_with_names(3).
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let names: Vec<_> = names.split(':').collect();
    let mut passed = ListenFd::from_env();
    let is_tls = |place: usize| names.get(place) == Some(&TLS_NAME);
    (0..passed.len()).map(|place| take(&mut passed, place, is_tls(place))).collect()
}

fn take(passed: &mut ListenFd, place: usize, is_tls: bool) -> anyhow::Result<Listener> {
    if let Ok(Some(listener)) = passed.take_tcp_listener(place) {
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        return Ok(if is_tls { Listener::Tls(listener) } else { Listener::Tcp(listener) });
    }
    if let Ok(Some(listener)) = passed.take_unix_listener(place) {
        listener.set_nonblocking(true)?;
        return Ok(Listener::Unix(UnixListener::from_std(listener)?));
    }
    let number = place + 1;
    let count = passed.len();
    let problem = "is neither TCP nor a unix stream socket";
    Err(Misconfigured(format!("socket {number} of {count} that systemd passed {problem}")).into())
}

/// Removes a socket that no process answers on, left by a process that was killed. Nothing else at
/// this path is ever removed.
fn make_way(path: &Path) -> anyhow::Result<()> {
    // The path itself is checked: a link is no socket, whatever its target is.
    let Ok(found) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !found.file_type().is_socket() {
        let problem = "exists and is not a socket; move it away, or set another path";
        return Err(Misconfigured(format!("LISTEN: {} {problem}", path.display())).into());
    }
    let is_stale = UnixStream::connect(path)
        .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
    if is_stale && let Err(error) = std::fs::remove_file(path) {
        tracing::warn!(path = %path.display(), %error, "a stale socket could not be removed");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;

    #[test]
    fn addresses_are_tcp_or_unix() {
        assert_eq!("unix:/a/b".parse(), Ok(Address::Unix("/a/b".into())));
        assert!(matches!("127.0.0.1:80".parse(), Ok(Address::Tcp(_))));
        assert!(matches!("[::1]:80".parse(), Ok(Address::Tcp(_))));
        for text in ["", "localhost:80", "unix:rel", "127.0.0.1"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }

    async fn bound(address: Address, access: SocketAccess) -> anyhow::Result<Listener> {
        let mut listeners = Listener::all(&ListenEndpoint { address, access }, None).await?;
        assert_eq!(listeners.len(), 1);
        Ok(listeners.remove(0))
    }

    async fn bound_at(path: &Path) -> anyhow::Result<Listener> {
        bound(Address::Unix(path.to_owned()), SocketAccess::default()).await
    }

    #[tokio::test]
    async fn a_listener_names_the_address_that_it_really_has() {
        let any_port = Address::Tcp(([127, 0, 0, 1], 0).into());
        let listener = bound(any_port, SocketAccess::default()).await.unwrap();
        let name: SocketAddr = listener.to_string().parse().unwrap();
        assert_ne!(name.port(), 0);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = bound_at(&path).await.unwrap();
        assert_eq!(listener.to_string(), format!("unix:{}", path.display()));
    }

    #[tokio::test]
    async fn an_address_in_use_is_named_with_what_to_do() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let free = ListenEndpoint {
            address: Address::Tcp(([127, 0, 0, 1], 0).into()),
            access: SocketAccess::default(),
        };
        let in_use = bound(Address::Tcp(address), SocketAccess::default()).await.unwrap_err();
        let tls_in_use = Listener::all(&free, Some(address)).await.unwrap_err();
        for (key, refused) in [("LISTEN: ", in_use), ("LISTEN_TLS: ", tls_in_use)] {
            let told = refused.to_string();
            assert!(told.starts_with(key) && told.contains("set another address"), "{told}");
            assert!(!refused.is::<Misconfigured>(), "a restart may help: {told}");
        }
    }

    /// Variable that names the file to which the child writes the names of its listeners.
    const NAMES: &str = "SPILLWAY_TEST_NAMES";

    /// Only a process that is started in this way is passed sockets: the test starts itself again.
    #[tokio::test]
    async fn every_socket_that_is_passed_is_taken() {
        const TAKE: &str = "exec 3<&0 4>&1 </dev/null >&2; LISTEN_FDS=2 LISTEN_PID=$$; \
                            export LISTEN_FDS LISTEN_PID; exec \"$0\" \"$@\"";
        if let Some(file) = std::env::var_os(NAMES) {
            let address = Address::Unix("/nonexistent/socket".into());
            let endpoint = ListenEndpoint { address, access: SocketAccess::default() };
            let taken = Listener::all(&endpoint, None).await.unwrap();
            let names: Vec<_> = taken.iter().map(Listener::to_string).collect();
            return std::fs::write(file, names.join(", ")).unwrap();
        }
        let directory = tempfile::tempdir().unwrap();
        let [path, names] = ["socket", "names"].map(|name| directory.path().join(name));
        let first = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let second = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let expected = format!("{}, unix:{}", first.local_addr().unwrap(), path.display());
        let child = std::process::Command::new("/bin/sh")
            .args(["-c", TAKE])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "listen::tests::every_socket_that_is_passed_is_taken"])
            .env(NAMES, &names)
            .stdin(OwnedFd::from(first))
            .stdout(OwnedFd::from(second))
            .output()
            .unwrap();
        assert!(child.status.success(), "{child:?}");
        assert_eq!(std::fs::read_to_string(&names).unwrap(), expected);
    }

    #[tokio::test]
    async fn what_is_no_socket_is_refused_and_stays() {
        let directory = tempfile::tempdir().unwrap();
        let [file, link, socket] =
            ["file", "link", "socket"].map(|name| directory.path().join(name));
        std::fs::write(&file, "precious").unwrap();
        drop(bound_at(&socket).await.unwrap());
        std::os::unix::fs::symlink(&socket, &link).unwrap();
        for path in [&file, &link, &directory.path().to_owned()] {
            let refused = bound_at(path).await.unwrap_err();
            assert!(refused.is::<Misconfigured>(), "{refused}");
            let told = refused.to_string();
            assert!(told.starts_with("LISTEN: ") && told.contains("not a socket"), "{told}");
            assert!(std::fs::symlink_metadata(path).is_ok(), "{} is gone", path.display());
        }
        assert_eq!(std::fs::read(&file).unwrap(), b"precious");
        // A socket left by an ended process is not in the way. After that, another process listens
        // on it.
        let _listening = bound_at(&socket).await.unwrap();
        let taken = bound_at(&socket).await.unwrap_err();
        assert!(taken.to_string().contains("in use"), "{taken}");
        assert!(UnixStream::connect(&socket).is_ok());
    }

    #[tokio::test]
    async fn a_socket_has_the_mode_and_the_group_that_are_set() {
        use std::os::unix::fs::MetadataExt;

        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let own_group = std::fs::metadata(directory.path()).unwrap().gid();
        for mode in [0o600, 0o660, 0o666] {
            let access = SocketAccess { mode: Some(mode), group: Some(own_group) };
            let _listening = bound(Address::Unix(path.clone()), access).await.unwrap();
            let found = std::fs::metadata(&path).unwrap();
            assert_eq!((found.mode() & 0o7777, found.gid()), (mode, own_group));
        }
    }
}
