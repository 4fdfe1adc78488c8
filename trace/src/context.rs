//! Context of a span, as the header `traceparent` carries it. Source: W3C Trace Context, section 3.2.
//!
//! With traces on, the header of each webhook is parsed: without an allocation.

use std::fmt;

/// Name of the header with a [`TraceContext`].
pub const TRACEPARENT: &str = "traceparent";
/// Name of the header in which tracing systems keep data of their own.
pub const TRACESTATE: &str = "tracestate";

/// Length of version 00. Later versions begin with the same parts.
const BYTES: usize = 55;
const DASHES: [usize; 3] = [2, 35, 52];
const SAMPLED: u128 = 1;

/// Names a span and its trace: the parent of what follows in other processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    pub(crate) trace: u128,
    pub(crate) span: u64,
    /// True if the trace is recorded.
    pub(crate) is_sampled: bool,
}

impl TraceContext {
    /// Reads the value of a `traceparent`. `None` if it is not one: then it must be ignored.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let (known, rest) = value.split_at_checked(BYTES)?;
        let is_well_formed = match hex(&known[..2])? {
            0 => rest.is_empty(),
            0xff => false,
            _ => rest.is_empty() || rest.starts_with(b"-"),
        };
        if !is_well_formed || DASHES.iter().any(|at| known[*at] != b'-') {
            return None;
        }
        let trace = hex(&known[3..35])?;
        let span = u64::try_from(hex(&known[36..52])?).ok()?;
        let is_sampled = hex(&known[53..])? & SAMPLED != 0;
        (trace != 0 && span != 0).then_some(Self { trace, span, is_sampled })
    }

    /// Another span of the same trace.
    #[must_use]
    pub fn with_span(self, span: u64) -> Self {
        Self { span: span.max(1), ..self }
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = u8::from(self.is_sampled);
        write!(f, "00-{:032x}-{:016x}-{flags:02x}", self.trace, self.span)
    }
}

/// Number of hexadecimal digits, which must be in lower case.
fn hex(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0, |number, digit| {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u128::from(value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn what_is_read_is_written_again() {
        let read = TraceContext::parse(GOOD.as_bytes()).expect("the specification's own example");
        assert!(read.is_sampled);
        assert_eq!(read.to_string(), GOOD);
        let not_sampled = GOOD.replace("-01", "-00");
        let read = TraceContext::parse(not_sampled.as_bytes()).expect("it is well formed");
        assert!(!read.is_sampled);
        assert_eq!(
            read.with_span(0x2a).to_string(),
            not_sampled.replace("00f067aa0ba902b7", "000000000000002a")
        );
    }

    #[test]
    fn a_later_version_may_say_more() {
        for later in ["cc-", "01-"] {
            let longer = format!("{}-what-comes", GOOD.replacen("00-", later, 1));
            assert!(TraceContext::parse(longer.as_bytes()).is_some(), "{longer}");
            let run_on = format!("{}.what-comes", GOOD.replacen("00-", later, 1));
            assert!(TraceContext::parse(run_on.as_bytes()).is_none(), "{run_on}");
        }
    }

    #[test]
    fn anything_else_is_ignored() {
        let zero_trace = GOOD.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32));
        let zero_span = GOOD.replace("00f067aa0ba902b7", &"0".repeat(16));
        let bad = [
            String::new(),
            GOOD.to_uppercase(),
            format!("{GOOD}-"),
            GOOD[..54].to_owned(),
            GOOD.replacen("00-", "ff-", 1),
            GOOD.replacen('-', "_", 1),
            GOOD.replacen("4b", "+b", 1),
            zero_trace,
            zero_span,
            "é".repeat(40),
        ];
        for value in bad {
            assert_eq!(TraceContext::parse(value.as_bytes()), None, "{value}");
        }
    }
}
