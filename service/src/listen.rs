//! Where to listen: a TCP address, a unix socket, or what systemd passed.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use listenfd::ListenFd;
use tokio::net::{TcpListener, TcpSocket, UnixListener};

use crate::start::Misconfigured;

/// Connections that wait to be accepted, as many as the kernel allows one listener
/// (net.core.somaxconn's default). Where a crowd fills this, whoever connects hears nothing for a
/// second, or believes to be connected; 1024, tokio's own, were not enough for 10,000 at once.
const BACKLOG: u32 = 4096;

/// An address to listen on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// Such as `127.0.0.1:8080`.
    Tcp(SocketAddr),
    /// Such as `unix:/run/spillway-receiver.sock`.
    Unix(PathBuf),
}

/// A bound listener.
#[derive(Debug)]
pub enum Listener {
    /// TCP.
    Tcp(TcpListener),
    /// A unix socket.
    Unix(UnixListener),
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
    /// Takes every socket that systemd passed; binds `address` if it passed none.
    ///
    /// # Errors
    /// When it can't be bound; the text says what to set.
    pub async fn all(address: &Address) -> anyhow::Result<Vec<Self>> {
        let passed = from_systemd()?;
        if passed.is_empty() { Ok(vec![Self::bind(address)?]) } else { Ok(passed) }
    }

    fn bind(address: &Address) -> anyhow::Result<Self> {
        match address {
            Address::Tcp(address) => match listen(*address) {
                Ok(listener) => Ok(Self::Tcp(listener)),
                Err(error) => Err(anyhow::anyhow!("LISTEN: cannot listen on {address}: {error}")),
            },
            Address::Unix(path) => {
                remove_stale(path);
                match UnixListener::bind(path) {
                    Ok(listener) => Ok(Self::Unix(listener)),
                    Err(error) => {
                        Err(anyhow::anyhow!("LISTEN: cannot listen on {}: {error}", path.display()))
                    }
                }
            }
        }
    }
}

/// The address it listens on, as the kernel knows it.
impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(listener) => match listener.local_addr() {
                Ok(address) => address.fmt(f),
                Err(_) => f.write_str("a TCP socket without an address"),
            },
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

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // As tokio's own bind does: a port whose last connections are not forgotten yet is free.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

fn from_systemd() -> anyhow::Result<Vec<Listener>> {
    let mut passed = ListenFd::from_env();
    (0..passed.len()).map(|place| take(&mut passed, place)).collect()
}

fn take(passed: &mut ListenFd, place: usize) -> anyhow::Result<Listener> {
    if let Ok(Some(listener)) = passed.take_tcp_listener(place) {
        listener.set_nonblocking(true)?;
        return Ok(Listener::Tcp(TcpListener::from_std(listener)?));
    }
    if let Ok(Some(listener)) = passed.take_unix_listener(place) {
        listener.set_nonblocking(true)?;
        return Ok(Listener::Unix(UnixListener::from_std(listener)?));
    }
    let (number, count) = (place + 1, passed.len());
    let problem = "is neither TCP nor a unix stream socket";
    Err(Misconfigured(format!("socket {number} of {count} that systemd passed {problem}")).into())
}

/// A socket file that nobody answers on was left by a process that was killed.
fn remove_stale(path: &std::path::Path) {
    let is_stale = std::os::unix::net::UnixStream::connect(path)
        .is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused);
    if is_stale && let Err(error) = std::fs::remove_file(path) {
        tracing::warn!(path = %path.display(), %error, "a stale socket could not be removed");
    }
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

    #[tokio::test]
    async fn a_listener_names_the_address_that_it_really_has() {
        let any_port = Address::Tcp(([127, 0, 0, 1], 0).into());
        let [listener] = &Listener::all(&any_port).await.unwrap()[..] else { panic!("not one") };
        let name: SocketAddr = listener.to_string().parse().unwrap();
        assert_ne!(name.port(), 0);
        let directory = tempfile::tempdir().unwrap();
        let text = format!("unix:{}/socket", directory.path().display());
        let [listener] = &Listener::all(&text.parse().unwrap()).await.unwrap()[..] else {
            panic!("not one")
        };
        assert_eq!(listener.to_string(), text);
    }

    /// Names the file that the child writes what it took to.
    const NAMES: &str = "SPILLWAY_TEST_NAMES";

    /// Only a process that was started so is passed sockets: this test starts itself again.
    #[tokio::test]
    async fn every_socket_that_is_passed_is_taken() {
        const TAKE: &str = "exec 3<&0 4>&1 </dev/null >&2; LISTEN_FDS=2 LISTEN_PID=$$; \
                            export LISTEN_FDS LISTEN_PID; exec \"$0\" \"$@\"";
        if let Some(file) = std::env::var_os(NAMES) {
            let address = Address::Unix("/nonexistent/socket".into());
            let taken = Listener::all(&address).await.unwrap();
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
}
