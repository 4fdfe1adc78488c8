//! What a backend may do with a request.

use std::time::Duration;

/// The answer to one request, or the lack of it.
#[derive(Clone, Debug)]
pub enum Behaviour {
    /// A whole answer.
    Answer {
        /// Its status.
        status: u16,
        /// How long the backend thinks first.
        after: Duration,
        /// Header lines such as Retry-After.
        headers: Vec<(&'static str, String)>,
    },
    /// The connection is reset.
    Reset,
    /// Nothing comes until the sender gives up.
    Hang,
    /// The connection closes in the middle of the status line.
    CutShort,
    /// These bytes, whatever they are, and then these again and again, until the sender hangs up.
    /// With nothing to repeat, the connection goes on, or closes.
    Wire {
        /// What is written first.
        begins: Vec<u8>,
        /// What is written after it.
        repeats: Vec<u8>,
        /// How often.
        every: Duration,
        /// Whether the connection closes where there is nothing to repeat.
        closes: bool,
    },
}

impl Behaviour {
    /// 200 at once.
    pub fn ok() -> Self {
        Self::status(200)
    }

    /// A status at once.
    pub fn status(status: u16) -> Self {
        Self::Answer { status, after: Duration::ZERO, headers: Vec::new() }
    }

    /// 200 after some time.
    pub fn slowly(after: Duration) -> Self {
        Self::Answer { status: 200, after, headers: Vec::new() }
    }

    /// Adds a header line.
    #[must_use]
    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        if let Self::Answer { headers, .. } = &mut self {
            headers.push((name, value.into()));
        }
        self
    }

    /// True if it is this side that ends the exchange.
    pub(crate) fn ends_here(&self) -> bool {
        !matches!(self, Self::Hang)
    }

    /// The status it will give.
    pub(crate) fn status_given(&self) -> Option<u16> {
        match self {
            Self::Answer { status, .. } => Some(*status),
            Self::Reset | Self::Hang | Self::CutShort | Self::Wire { .. } => None,
        }
    }
}
