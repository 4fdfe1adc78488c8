//! End of a certificate's validity, read from its DER. The crates that verify certificates keep it to
//! themselves.
//!
//! Source: RFC 5280, section 4.1.

use time::{Date, Month, Time};

/// Tags of DER (X.690, section 8).
const INTEGER: u8 = 0x02;
const SEQUENCE: u8 = 0x30;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
/// Version of a certificate: `[0]`, which is there since version 2.
const VERSION: u8 = 0xa0;

/// Elements that follow each other.
struct Elements<'a>(&'a [u8]);

impl<'a> Elements<'a> {
    /// Takes the next element: its tag and its content.
    fn take(&mut self) -> Option<(u8, &'a [u8])> {
        let (&tag, rest) = self.0.split_first()?;
        let (&first, rest) = rest.split_first()?;
        let (length, rest) = match first {
            0..=0x7f => (usize::from(first), rest),
            0x81..=0x83 => {
                let (bytes, rest) = rest.split_at_checked(usize::from(first - 0x80))?;
                (bytes.iter().fold(0, |length, byte| (length << 8) | usize::from(*byte)), rest)
            }
            _ => return None,
        };
        let (content, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some((tag, content))
    }

    /// Takes the next element, if it has this tag.
    fn expect(&mut self, wanted: u8) -> Option<&'a [u8]> {
        self.take().filter(|(tag, _)| *tag == wanted).map(|(_, content)| content)
    }
}

/// Unix time in seconds up to which a certificate is valid.
pub(crate) fn not_after(certificate: &[u8]) -> Option<i64> {
    let mut certificate = Elements(Elements(certificate).expect(SEQUENCE)?);
    let mut fields = Elements(certificate.expect(SEQUENCE)?);
    if fields.0.first() == Some(&VERSION) {
        fields.expect(VERSION)?;
    }
    let _serial = fields.expect(INTEGER)?;
    let _algorithm = fields.expect(SEQUENCE)?;
    let _issuer = fields.expect(SEQUENCE)?;
    let mut validity = Elements(fields.expect(SEQUENCE)?);
    let _not_before = validity.take()?;
    let (tag, text) = validity.take()?;
    unix_time(tag, std::str::from_utf8(text).ok()?)
}

/// Reads `YYMMDDHHMMSSZ` or `YYYYMMDDHHMMSSZ`.
fn unix_time(tag: u8, text: &str) -> Option<i64> {
    let text = text.strip_suffix('Z').filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let (year, rest) = match tag {
        UTC_TIME => {
            let (year, rest) = text?.split_at_checked(2)?;
            let year: i32 = year.parse().ok()?;
            (year + if year < 50 { 2000 } else { 1900 }, rest)
        }
        GENERALIZED_TIME => {
            let (year, rest) = text?.split_at_checked(4)?;
            (year.parse().ok()?, rest)
        }
        _ => return None,
    };
    let number = |place: usize| rest.get(2 * place..2 * place + 2)?.parse::<u8>().ok();
    let date =
        Date::from_calendar_date(year, Month::try_from(number(0)?).ok()?, number(1)?).ok()?;
    let time = Time::from_hms(number(2)?, number(3)?, number(4)?).ok()?;
    (rest.len() == 10).then(|| date.with_time(time).assume_utc().unix_timestamp())
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;

    use super::*;

    /// Made by `openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=a` with
    /// `-days 1900`, and with `-days 9300`: after 2049 a time has the other form.
    const OF_2032: &str = "-----BEGIN CERTIFICATE-----
MIIBbTCCAROgAwIBAgIUYmXmgtsjcB3NKDwp0aGLVnQwj5IwCgYIKoZIzj0EAwIw
DDEKMAgGA1UEAwwBYTAeFw0yNjExMjkwOTQ3MjVaFw0zMjAyMTEwOTQ3MjVaMAwx
CjAIBgNVBAMMAWEwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAAT005Q3Kie6auxO
KrOPXPi8jTiLvUhG6hjXqL/WCC7v/T1bixwqfln1DL+rXZ7j3Cp06v0zWo//Z2io
0o7SvR5Lo1MwUTAdBgNVHQ4EFgQUVqMrUJ3bZKU7XMEhhP/5dVNGOv8wHwYDVR0j
BBgwFoAUVqMrUJ3bZKU7XMEhhP/5dVNGOv8wDwYDVR0TAQH/BAUwAwEB/zAKBggq
hkjOPQQDAgNIADBFAiEA4UOt5YjrHiGkTHfgJXtNeC+nA6WJETZo+6GaBhPhqUsC
IHnfiCVTPMy5f/5F6t2dd619fmE8DsaPbsnhY5pO2Rch
-----END CERTIFICATE-----";
    const OF_2052: &str = "-----BEGIN CERTIFICATE-----
MIIBbjCCARWgAwIBAgIUPJquQMQ7RCKC3lODxMUuMry86gYwCgYIKoZIzj0EAwIw
DDEKMAgGA1UEAwwBYTAgFw0yNjExMjkwOTQ3MjVaGA8yMDUyMDUxNjA5NDcyNVow
DDEKMAgGA1UEAwwBYTBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABNkhfOmwkxV4
Jv/5BJVvsEz9qFrCp7XeEc9tZveRi0EswoI5RHEiQ/2E8O48lEXFgJtDxzwOcjmK
wIwih7dy/IyjUzBRMB0GA1UdDgQWBBTjnKKEsfDMs8EaFVjueQHyI6+NpTAfBgNV
HSMEGDAWgBTjnKKEsfDMs8EaFVjueQHyI6+NpTAPBgNVHRMBAf8EBTADAQH/MAoG
CCqGSM49BAMCA0cAMEQCIGlkuaXeuotGGt5BXF6YYfNtQOus1MasiLxg3hHQALgX
AiAjTWQGcELktpq/3+lM6mnDJceupedTb3nR1d1sEdcRhw==
-----END CERTIFICATE-----";

    fn read(pem: &str) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(pem.as_bytes()).expect("a certificate")
    }

    #[test]
    fn the_end_is_read_in_both_forms() {
        assert_eq!(not_after(&read(OF_2032)), Some(1_960_105_645));
        assert_eq!(not_after(&read(OF_2052)), Some(2_599_465_645));
    }

    #[test]
    fn what_is_no_certificate_has_no_end() {
        let good = read(OF_2032);
        for length in 0..good.len() {
            assert_eq!(not_after(&good[..length]), None, "{length}");
        }
        for text in ["", "Z", "310203040506", "311303040506Z", "310230040506Z", "3102030405061Z"] {
            assert_eq!(unix_time(UTC_TIME, text), None, "{text}");
        }
        assert_eq!(unix_time(UTC_TIME, "700101000000Z"), Some(0));
        assert_eq!(unix_time(GENERALIZED_TIME, "19700101000001Z"), Some(1));
        assert_eq!(unix_time(INTEGER, "700101000000Z"), None);
    }
}
