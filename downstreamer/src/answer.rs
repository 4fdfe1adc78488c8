//! Bytes of a backend's answer: the first ones are kept for a dead letter.

use bytes::Bytes;
use hyper::body::Frame;

/// Bytes of an answer that are kept for a dead letter.
const ANSWER_KEPT_BYTES: usize = 1024;
/// Bytes of an answer that are read. A connection with more on it is not used again.
const ANSWER_READ_BYTES: usize = 64 << 10;
const _: () = assert!(ANSWER_KEPT_BYTES <= ANSWER_READ_BYTES, "what is kept was read");

/// Body of an answer, as far as it was read.
#[derive(Debug, Default)]
pub(crate) struct AnswerBytes {
    kept: Vec<u8>,
    read: usize,
}

impl AnswerBytes {
    /// Adds a frame of the body. Trailers are left out.
    pub(crate) fn add(&mut self, frame: Frame<Bytes>) {
        let Ok(data) = frame.into_data() else { return };
        let room = ANSWER_KEPT_BYTES - self.kept.len();
        self.kept.extend_from_slice(&data[..data.len().min(room)]);
        self.read += data.len();
    }

    /// Returns true if no more of the body is to be read.
    pub(crate) fn is_full(&self) -> bool {
        self.read > ANSWER_READ_BYTES
    }

    /// The first bytes of the body.
    pub(crate) fn into_kept(self) -> Vec<u8> {
        self.kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_of_an_answer_is_kept() {
        let mut answer = AnswerBytes::default();
        answer.add(Frame::data(Bytes::from_static(b"first ")));
        answer.add(Frame::trailers(http::HeaderMap::new()));
        answer.add(Frame::data(Bytes::from(vec![b'x'; ANSWER_READ_BYTES - 6])));
        assert!(!answer.is_full());
        answer.add(Frame::data(Bytes::from_static(b"y")));
        assert!(answer.is_full());
        let kept = answer.into_kept();
        assert_eq!(kept.len(), ANSWER_KEPT_BYTES);
        assert!(kept.starts_with(b"first xx"));
    }
}
