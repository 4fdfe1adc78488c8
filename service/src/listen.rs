//! Where to listen: a TCP address, a unix socket, or what systemd passed.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use listenfd::ListenFd;
use tokio::net::{TcpListener, TcpSocket, UnixListener};

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
    /// Takes the socket that systemd passed, else binds `address`.
    ///
    /// # Errors
    /// When it can't be bound; the text says what to set.
    pub async fn bind(address: &Address) -> anyhow::Result<Self> {
        if let Some(passed) = from_systemd()? {
            return Ok(passed);
        }
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

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // As tokio's own bind does: a port whose last connections are not forgotten yet is free.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

fn from_systemd() -> anyhow::Result<Option<Listener>> {
    let mut passed = ListenFd::from_env();
    if passed.len() == 0 {
        return Ok(None);
    }
    if let Ok(Some(listener)) = passed.take_tcp_listener(0) {
        listener.set_nonblocking(true)?;
        return Ok(Some(Listener::Tcp(TcpListener::from_std(listener)?)));
    }
    if let Ok(Some(listener)) = passed.take_unix_listener(0) {
        listener.set_nonblocking(true)?;
        return Ok(Some(Listener::Unix(UnixListener::from_std(listener)?)));
    }
    anyhow::bail!("the socket that systemd passed is neither TCP nor a unix stream socket")
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
}
