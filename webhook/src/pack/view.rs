//! Borrowed view of a webhook in a pack, for a reader that looks at each one once and copies only
//! what it needs.

use super::{Pack, RECORD_HEADER_BYTES};
use crate::shopify::Headers;
use crate::size::size;

/// One webhook of a pack. Creating a view allocates nothing. A view borrows from the pack.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// Wall clock at the first byte of the request, in milliseconds since the Unix epoch.
    pub received_at_ms: u64,
    /// Path and query.
    pub target: &'a [u8],
    /// The raw body.
    pub body: &'a [u8],
    headers: &'a [u8],
    header_count: u16,
}

/// The headers of a [`View`], in the order received.
#[derive(Debug, Clone)]
pub struct HeaderViews<'a> {
    rest: &'a [u8],
    left: u16,
}

impl Pack {
    /// The webhook at `index`, borrowed.
    ///
    /// # Panics
    /// When `index` is not below [`Pack::count`].
    pub fn view(&self, index: u32) -> View<'_> {
        let bytes = self.record_bytes(index);
        let (head, rest) = bytes.split_at(RECORD_HEADER_BYTES);
        let (target, rest) = rest.split_at(size(u32_at(head, 8)));
        let (headers, body) = rest.split_at(size(u32_at(head, 12)));
        let received_at_ms = u64::from(u32_at(head, 0)) | u64::from(u32_at(head, 4)) << 32;
        let header_count = u16::from_le_bytes([head[20], head[21]]);
        View { received_at_ms, target, body, headers, header_count }
    }
}

impl<'a> View<'a> {
    /// Kept headers, names in lower case.
    pub fn headers(&self) -> HeaderViews<'a> {
        HeaderViews { rest: self.headers, left: self.header_count }
    }

    /// Number of headers.
    pub fn header_count(&self) -> usize {
        usize::from(self.header_count)
    }

    /// True if the webhook was erased from an archive: only its place in the pack is left.
    pub fn is_erased(&self) -> bool {
        self.target.is_empty() && self.header_count == 0 && self.body.is_empty()
    }
}

impl<'a> Iterator for HeaderViews<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let (lengths, rest) = self.rest.split_at(6);
        let name_bytes = usize::from(u16::from_le_bytes([lengths[0], lengths[1]]));
        let (name, rest) = rest.split_at(name_bytes);
        let (value, rest) = rest.split_at(size(u32_at(lengths, 2)));
        self.rest = rest;
        Some((name, value))
    }
}

impl Headers for View<'_> {
    fn value(&self, name: &str) -> Option<&[u8]> {
        self.headers().find(|(have, _)| *have == name.as_bytes()).map(|(_, value)| value)
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
