//! HTTP/1.1 as bytes on a socket.
//!
//! Both ends of the stories read the wire themselves: an HTTP library would put right, merge or
//! reorder the very things the tests are about. `httparse` splits the head, nothing more.

use std::io;

use bytes::{Bytes, BytesMut};
use tokio::io::AsyncReadExt;
use tokio::net::tcp::OwnedReadHalf;

/// Larger than any head a test sends or gets.
const HEAD_BYTES_MAX: usize = 1024 * 1024;

/// More headers than any test sends.
pub const HEADERS_MAX: usize = 256;

/// Header lines in the order they came, values as bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Headers(pub Vec<(String, Vec<u8>)>);

/// The reading half of a connection, with what was read too far.
#[derive(Debug)]
pub struct Incoming {
    stream: OwnedReadHalf,
    buffer: BytesMut,
    /// True once a byte of the current message has come.
    pub begun: bool,
}

impl Headers {
    /// The first value of a name, compared without case.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        let same = |(other, _): &&(String, Vec<u8>)| other.eq_ignore_ascii_case(name);
        self.0.iter().find(same).map(|(_, value)| value.as_slice())
    }

    /// The first value of a name, where it is text.
    pub fn text(&self, name: &str) -> Option<&str> {
        std::str::from_utf8(self.get(name)?).ok()
    }

    /// Every value of a name, in order.
    pub fn all(&self, name: &str) -> Vec<&[u8]> {
        let same = |(other, _): &&(String, Vec<u8>)| other.eq_ignore_ascii_case(name);
        self.0.iter().filter(same).map(|(_, value)| value.as_slice()).collect()
    }
}

impl From<&[httparse::Header<'_>]> for Headers {
    fn from(parsed: &[httparse::Header<'_>]) -> Self {
        Self(parsed.iter().map(|header| (header.name.to_owned(), header.value.to_vec())).collect())
    }
}

impl Incoming {
    /// Reads from the start of a message.
    pub fn new(stream: OwnedReadHalf) -> Self {
        Self { stream, buffer: BytesMut::new(), begun: false }
    }

    /// The next head with its blank line; `None` where the peer closed in between messages.
    pub async fn head(&mut self) -> io::Result<Option<Bytes>> {
        let mut searched = 0;
        self.begun = !self.buffer.is_empty();
        loop {
            if let Some(at) = find(&self.buffer[searched..], b"\r\n\r\n") {
                return Ok(Some(self.buffer.split_to(searched + at + 4).freeze()));
            }
            if self.buffer.len() > HEAD_BYTES_MAX {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "endless head"));
            }
            searched = self.buffer.len().saturating_sub(3);
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return if self.begun { Err(cut()) } else { Ok(None) };
            }
            self.begun = true;
        }
    }

    /// Exactly `length` bytes of body.
    pub async fn body(&mut self, length: usize) -> io::Result<Bytes> {
        self.buffer.reserve(length.saturating_sub(self.buffer.len()));
        while self.buffer.len() < length {
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(cut());
            }
        }
        Ok(self.buffer.split_to(length).freeze())
    }

    /// Everything up to the end of the connection.
    pub async fn rest(&mut self) -> io::Result<Bytes> {
        while self.stream.read_buf(&mut self.buffer).await? > 0 {}
        Ok(self.buffer.split().freeze())
    }

    /// Resolves when the peer has closed. Never, if it sends more first: then it is still there.
    pub async fn closed(&mut self) {
        if self.stream.peek(&mut [0]).await.is_ok_and(|bytes| bytes > 0) {
            std::future::pending().await
        }
    }
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

fn cut() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "closed in the middle of a message")
}
