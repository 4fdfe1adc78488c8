//! Scripted reactions of a backend to a request.

use std::time::Duration;

/// The answer to one request, or its absence.
#[derive(Clone, Debug)]
pub enum Behaviour {
    /// A complete answer.
    Answer {
        /// Status code.
        status: u16,
        /// Working time before the answer.
        after: Duration,
        /// Header lines such as Retry-After.
        headers: Vec<(&'static str, String)>,
        /// Body.
        body: String,
    },
    /// The connection is reset.
    Reset,
    /// No answer comes until the sender gives up.
    Hang,
    /// The connection closes in the middle of the status line.
    CutShort,
    /// Writes arbitrary bytes first, and then other bytes repeatedly until the sender hangs up. If
    /// there is nothing to repeat, the connection stays open or closes.
    Wire {
        /// Bytes written first.
        begins: Vec<u8>,
        /// Bytes written repeatedly after that.
        repeats: Vec<u8>,
        /// Time between two repetitions.
        every: Duration,
        /// Set if the connection closes when there is nothing to repeat.
        closes: bool,
    },
}

impl Behaviour {
    /// Answers 200 at once.
    pub fn ok() -> Self {
        Self::status(200)
    }

    /// Answers with a status at once.
    pub fn status(status: u16) -> Self {
        Self::Answer { status, after: Duration::ZERO, headers: Vec::new(), body: String::new() }
    }

    /// Answers 200 after some time.
    pub fn slowly(after: Duration) -> Self {
        Self::Answer { status: 200, after, headers: Vec::new(), body: String::new() }
    }

    /// Answers 200 with this body after some time.
    pub fn text(text: impl Into<String>, after: Duration) -> Self {
        Self::Answer { status: 200, after, headers: Vec::new(), body: text.into() }
    }

    /// Adds a header line.
    #[must_use]
    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        if let Self::Answer { headers, .. } = &mut self {
            headers.push((name, value.into()));
        }
        self
    }

    /// True if the backend, not the sender, ends the exchange.
    pub(crate) fn ends_here(&self) -> bool {
        !matches!(self, Self::Hang)
    }

    /// The status that is answered, if any.
    pub(crate) fn status_given(&self) -> Option<u16> {
        match self {
            Self::Answer { status, .. } => Some(*status),
            Self::Reset | Self::Hang | Self::CutShort | Self::Wire { .. } => None,
        }
    }
}
