//! HTTP/1.1 as bytes on a socket.
//!
//! The tests read and write raw bytes at both ends: an HTTP library would correct, merge or reorder
//! exactly what the tests check. `httparse` only splits the head.

use std::io;

use bytes::{Bytes, BytesMut};
use tokio::io::AsyncReadExt;
use tokio::net::tcp::OwnedReadHalf;

/// Larger than any head that a test sends or receives.
const HEAD_BYTES_MAX: usize = 1024 * 1024;

/// More headers than any test sends.
pub const HEADERS_MAX: usize = 256;

/// Header lines in the order of arrival, with values as bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Headers(pub Vec<(String, Vec<u8>)>);

/// Reading half of a connection, with the bytes that were read ahead.
#[derive(Debug)]
pub struct Incoming {
    stream: OwnedReadHalf,
    buffer: BytesMut,
    /// True once a byte of the current message has arrived.
    pub begun: bool,
}

impl Headers {
    /// First value of a header; names are compared without case.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        let same = |(other, _): &&(String, Vec<u8>)| other.eq_ignore_ascii_case(name);
        self.0.iter().find(same).map(|(_, value)| value.as_slice())
    }

    /// First value of a header, if it is text.
    pub fn text(&self, name: &str) -> Option<&str> {
        std::str::from_utf8(self.get(name)?).ok()
    }

    /// All values of a header, in order.
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
    /// Starts at the beginning of a message.
    pub fn new(stream: OwnedReadHalf) -> Self {
        Self { stream, buffer: BytesMut::new(), begun: false }
    }

    /// Reads the next head with its blank line; `None` if the peer closed between messages.
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

    /// Reads exactly `length` bytes of body.
    pub async fn body(&mut self, length: usize) -> io::Result<Bytes> {
        self.buffer.reserve(length.saturating_sub(self.buffer.len()));
        while self.buffer.len() < length {
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(cut());
            }
        }
        Ok(self.buffer.split_to(length).freeze())
    }

    /// Reads everything up to the end of the connection.
    pub async fn rest(&mut self) -> io::Result<Bytes> {
        while self.stream.read_buf(&mut self.buffer).await? > 0 {}
        Ok(self.buffer.split().freeze())
    }

    /// Resolves when the peer has closed. It never resolves if the peer sends data first.
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
