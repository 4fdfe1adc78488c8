//! Reads numbers and bytes from front to back. No length is trusted: it is compared with the bytes at hand.

use spillway_webhook::StreamId;

use crate::error::BadObject;

/// Most bytes of a number of variable length: 7 bits each.
const NUMBER_BYTES_MAX: u32 = 10;

const SHORT: BadObject = BadObject::Malformed("it ends early");

/// Bytes that are read from front to back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// Reads these bytes.
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// True if nothing is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of bytes that are left.
    pub(crate) fn left(&self) -> usize {
        self.0.len()
    }

    /// Takes `count` bytes.
    pub(crate) fn take(&mut self, count: usize) -> Result<&'a [u8], BadObject> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(SHORT)?;
        self.0 = rest;
        Ok(taken)
    }

    /// Takes an array.
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], BadObject> {
        let (taken, rest) = self.0.split_first_chunk::<N>().ok_or(SHORT)?;
        self.0 = rest;
        Ok(*taken)
    }

    /// Takes a byte.
    pub(crate) fn u8(&mut self) -> Result<u8, BadObject> {
        let [byte] = self.array()?;
        Ok(byte)
    }

    /// Takes a number of 2 bytes.
    pub(crate) fn u16(&mut self) -> Result<u16, BadObject> {
        self.array().map(u16::from_le_bytes)
    }

    /// Takes a number of 4 bytes.
    pub(crate) fn u32(&mut self) -> Result<u32, BadObject> {
        self.array().map(u32::from_le_bytes)
    }

    /// Takes a number of 8 bytes.
    pub(crate) fn u64(&mut self) -> Result<u64, BadObject> {
        self.array().map(u64::from_le_bytes)
    }

    /// Takes an entry id of 16 bytes.
    pub(crate) fn stream_id(&mut self) -> Result<StreamId, BadObject> {
        Ok(StreamId { ms: self.u64()?, seq: self.u64()? })
    }

    /// Takes a number of variable length (LEB128).
    pub(crate) fn number(&mut self) -> Result<u64, BadObject> {
        const LONG: BadObject = BadObject::Malformed("a number is too long");
        let mut number = 0u64;
        for place in 0..NUMBER_BYTES_MAX {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            let shifted = bits << (7 * place);
            if shifted >> (7 * place) != bits {
                return Err(LONG);
            }
            number |= shifted;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(LONG)
    }

    /// Takes a number of variable length that fits into 32 bits.
    pub(crate) fn small(&mut self) -> Result<u32, BadObject> {
        u32::try_from(self.number()?).map_err(|_| BadObject::Malformed("a number is too large"))
    }

    /// Takes bytes with their length before them.
    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], BadObject> {
        let length = usize::try_from(self.number()?).map_err(|_| SHORT)?;
        self.take(length)
    }

    /// Takes the number of elements that follow, of at least `each` bytes.
    pub(crate) fn count(&mut self, each: usize) -> Result<usize, BadObject> {
        let count = usize::try_from(self.number()?).map_err(|_| SHORT)?;
        let bytes = count.checked_mul(each).ok_or(SHORT)?;
        if bytes > self.left() { Err(SHORT) } else { Ok(count) }
    }
}

/// Appends a number of variable length (LEB128).
pub(crate) fn put_number(output: &mut Vec<u8>, mut number: u64) {
    loop {
        let byte = number.to_le_bytes()[0] & 0x7f;
        number >>= 7;
        if number == 0 {
            output.push(byte);
            return;
        }
        output.push(byte | 0x80);
    }
}

/// Appends bytes with their length before them.
pub(crate) fn put_bytes(output: &mut Vec<u8>, bytes: &[u8]) {
    put_number(output, length_u64(bytes.len()));
    output.extend_from_slice(bytes);
}

/// Appends an entry id of 16 bytes.
pub(crate) fn put_stream_id(output: &mut Vec<u8>, id: StreamId) {
    output.extend_from_slice(&id.ms.to_le_bytes());
    output.extend_from_slice(&id.seq.to_le_bytes());
}

/// A length as a number.
pub(crate) fn length_u64(bytes: usize) -> u64 {
    u64::try_from(bytes).expect("BUG: a size in memory has at most 64 bits")
}

/// A length of 32 bits.
pub(crate) fn length_u32(bytes: usize) -> u32 {
    u32::try_from(bytes).expect("BUG: Redis takes no value of 4 GiB, and an index is far smaller")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_they_were_written() {
        for number in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
            let mut bytes = Vec::new();
            put_number(&mut bytes, number);
            let mut input = Input::new(&bytes);
            assert_eq!(input.number(), Ok(number));
            assert!(input.is_empty());
            assert!(Input::new(&bytes[..bytes.len() - 1]).number().is_err(), "{number}");
        }
    }

    #[test]
    fn a_number_that_is_too_long_and_a_count_without_bytes_are_refused() {
        assert!(Input::new(&[0xff; 11]).number().is_err());
        assert!(
            Input::new(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2])
                .number()
                .is_err()
        );
        let mut claimed = Vec::new();
        put_number(&mut claimed, u64::MAX);
        assert!(Input::new(&claimed).count(4).is_err());
        assert!(Input::new(&claimed).bytes().is_err());
        assert!(Input::new(&claimed).small().is_err());
    }
}
