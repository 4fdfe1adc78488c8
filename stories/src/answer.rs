//! Answers of a server.

use std::io;

use bytes::Bytes;

use crate::wire::{HEADERS_MAX, Headers, Incoming};

/// A complete HTTP answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Status code.
    pub status: u16,
    /// Header lines in order.
    pub headers: Headers,
    /// The body.
    pub body: Bytes,
}

impl Answer {
    /// Reads one answer.
    pub async fn read(incoming: &mut Incoming) -> io::Result<Self> {
        let Some(head) = incoming.head().await? else {
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "closed unanswered"));
        };
        let mut lines = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut parsed = httparse::Response::new(&mut lines);
        parsed.parse(&head).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        let status = parsed.code.expect("a parsed answer has a status");
        let headers = Headers::from(&*parsed.headers);
        let body = match headers.text("content-length") {
            Some(length) => {
                let length = length.parse();
                incoming.body(length.expect("Content-Length is a number")).await?
            }
            None if status == 204 || status == 304 => Bytes::new(),
            None => incoming.rest().await?,
        };
        Ok(Self { status, headers, body })
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Error code of an error answer, from `{"error":"<code>","message":"…"}`.
    pub fn code(&self) -> String {
        let json: serde_json::Value = serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error} in the body of {self:?}"));
        assert!(json["message"].is_string(), "an error has a message: {json}");
        json["error"].as_str().expect("an error has a code").to_owned()
    }

    /// Fails the test unless the status and the error code match.
    #[track_caller]
    pub fn expect(&self, status: u16, code: &str) {
        assert_eq!(self.status, status, "{}", self.text());
        assert_eq!(self.code(), code, "{}", self.text());
    }

    /// Same as [`expect`](Self::expect) for a 503, which must also have a Retry-After header.
    #[track_caller]
    pub fn expect_later(&self, code: &str) {
        self.expect(503, code);
        let seconds = self.headers.text("retry-after").expect("a 503 carries Retry-After");
        seconds.parse::<u64>().expect("Retry-After is in whole seconds");
    }

    /// Fails the test unless the webhook was stored: status 200 with an empty body.
    #[track_caller]
    pub fn expect_stored(&self) {
        assert_eq!(self.status, 200, "{}", self.text());
        assert!(self.body.is_empty(), "a 200 has an empty body");
    }
}
