//! A connection of the generator. It sends a request as the kernel accepts it, and reads the
//! answer.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use rustix::event::epoll;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType};

/// Largest accepted answer. An answer consists of a status and a few words; a larger one is not
/// from a receiver.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// State of a connection.
#[derive(Clone, Copy)]
pub(crate) enum State {
    Opening,
    Free,
    /// The request under way, and the number of its bytes that the kernel accepted.
    Busy {
        number: usize,
        sent: usize,
    },
}

/// A connection to the receiver, and the received part of an answer.
pub(crate) struct Connection {
    stream: TcpStream,
    /// State, which the owner of the connection changes.
    pub state: State,
    /// The request under way, in its form on the wire.
    pub request: Vec<u8>,
    received: Vec<u8>,
    /// Set once an answer arrived: the receiver accepts connections.
    pub has_answered: bool,
}

impl Connection {
    /// Creates a connection that is being opened.
    pub(crate) fn opening(stream: TcpStream) -> Self {
        Self {
            stream,
            state: State::Opening,
            request: Vec::new(),
            received: Vec::new(),
            has_answered: false,
        }
    }

    /// Returns an error if the connection could not be opened.
    pub(crate) fn opened(&self) -> io::Result<Option<Answer>> {
        match self.stream.take_error()? {
            Some(error) => Err(error),
            None => Ok(None),
        }
    }

    /// Sends the rest of the request, as far as the kernel accepts it.
    pub(crate) fn send(&mut self) -> io::Result<()> {
        let State::Busy { sent, .. } = &mut self.state else { return Ok(()) };
        while *sent < self.request.len() {
            match self.stream.write(&self.request[*sent..]) {
                Ok(count) => *sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads the available bytes. Returns `None` until the answer is complete.
    pub(crate) fn receive(
        &mut self,
        buffer: &mut [u8],
        flags: epoll::EventFlags,
    ) -> io::Result<Option<Answer>> {
        let ends = epoll::EventFlags::RDHUP | epoll::EventFlags::HUP | epoll::EventFlags::ERR;
        let ends = flags.intersects(ends);
        let (mut ended, mut emptied) = (false, false);
        // A short read emptied the socket (epoll(7)), unless an end was announced.
        while !ended && (ends || !emptied) {
            match self.stream.read(buffer) {
                Ok(0) => ended = true,
                Ok(count) => {
                    self.received.extend_from_slice(&buffer[..count]);
                    emptied = count < buffer.len();
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => ended = true,
            }
        }
        let answer = answer(&self.received)?;
        if let Some(answer) = answer {
            let closes = answer.closes || ended || self.received.len() > answer.bytes;
            self.received.clear();
            return Ok(Some(Answer { closes, ..answer }));
        }
        if ended { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(None) }
    }
}

/// The relevant parts of an answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Answer {
    pub status: u16,
    bytes: usize,
    pub closes: bool,
}

/// Parses the answer at the start of these bytes. Returns `None` while it is incomplete. An answer
/// without Content-Length counts when its head is complete. Its connection is then closed, so its
/// end does not matter.
fn answer(received: &[u8]) -> io::Result<Option<Answer>> {
    let malformed = || io::Error::from(ErrorKind::InvalidData);
    let Some(head) = received.windows(4).position(|bytes| bytes == b"\r\n\r\n") else {
        return if received.len() > ANSWER_BYTES_MAX { Err(malformed()) } else { Ok(None) };
    };
    let text = str::from_utf8(&received[..head]).map_err(|_| malformed())?;
    let mut lines = text.split("\r\n");
    let first = lines.next().and_then(|line| line.split_once(' '));
    let (version, rest) = first.ok_or_else(malformed)?;
    let status = rest.get(..3).and_then(|digits| digits.parse().ok()).ok_or_else(malformed)?;
    let mut closes = version != "HTTP/1.1";
    let mut length = if matches!(status, 204 | 304) { Some(0) } else { None };
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        if name.eq_ignore_ascii_case("content-length") {
            length = Some(value.trim().parse::<usize>().map_err(|_| malformed())?);
        } else if name.eq_ignore_ascii_case("connection") {
            closes |= value.trim().eq_ignore_ascii_case("close");
        }
    }
    let bytes = head + 4 + length.unwrap_or(0).min(ANSWER_BYTES_MAX + 1);
    if bytes > ANSWER_BYTES_MAX {
        return Err(malformed());
    }
    let answer = Answer { status, bytes, closes: closes || length.is_none() };
    Ok((received.len() >= bytes).then_some(answer))
}

/// Starts to open a connection without blocking, because due requests must not wait for it.
pub(crate) fn connecting(address: SocketAddr) -> io::Result<TcpStream> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = net::socket_with(family, SocketType::STREAM, flags, None)?;
    match net::connect(&socket, &address) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
        Err(error) => return Err(error.into()),
    }
    let stream = TcpStream::from(socket);
    // The last bytes of a request must not wait for an acknowledgement of the first (Nagle).
    stream.set_nodelay(true)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(received: &str, expected: Option<(u16, usize, bool)>) {
        let got = answer(received.as_bytes()).expect("it is well formed");
        assert_eq!(got.map(|a| (a.status, a.bytes, a.closes)), expected, "{received:?}");
    }

    #[test]
    fn an_answer_counts_when_it_is_whole() {
        check("", None);
        check("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n", None);
        check("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", Some((200, 38, false)));
        check("HTTP/1.1 503 No\r\nContent-Length: 2\r\n\r\nn", None);
        check("HTTP/1.1 503 No\r\nContent-Length: 2\r\n\r\nno", Some((503, 40, false)));
    }

    #[test]
    fn an_answer_tells_whether_its_connection_ends() {
        let closing = "HTTP/1.1 408 Late\r\nConnection: Close\r\nContent-Length: 0\r\n\r\n";
        check(closing, Some((408, closing.len(), true)));
        check("HTTP/1.1 200 OK\r\n\r\n", Some((200, 19, true)));
        check("HTTP/1.1 204 No\r\n\r\n", Some((204, 19, false)));
        check("HTTP/1.0 204 No\r\n\r\n", Some((204, 19, true)));
    }

    #[test]
    fn what_is_no_answer_is_refused() {
        for received in ["SSH-2.0\r\n\r\n", "HTTP/1.1 200\r\ncontent-length: x\r\n\r\n"] {
            assert!(answer(received.as_bytes()).is_err(), "{received:?}");
        }
    }
}
