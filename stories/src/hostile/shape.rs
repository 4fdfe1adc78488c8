//! Invalid requests and the expected answers: one table for each kind of defect.
//!
//! Sources: RFC 9112 (sections 2.2, 3.2, 5.1, 5.2, 6.1 to 6.3, 7.1, 11.2), RFC 9110 (section 5.5).

use super::hidden;
use crate::webhook::Webhook;

const PAYLOAD: &str = r#"{"id":1}"#;
/// The payload as a chunked body.
const CHUNKED: &str = "8\r\n{\"id\":1}\r\n0\r\n\r\n";
/// Start of an HTTP/2 connection: the preface and an empty SETTINGS frame (RFC 9113, 3.4).
pub const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Bytes to write on a connection, and the statuses that are expected before it closes.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Name of the defect.
    pub name: &'static str,
    /// Bytes to write.
    pub bytes: Vec<u8>,
    /// Expected statuses.
    pub expected: &'static [u16],
}

fn shape(name: &'static str, bytes: Vec<u8>, expected: &'static [u16]) -> Shape {
    Shape { name, bytes, expected }
}

/// A signed webhook with these lines for its length, and this text after its head.
fn framed(framing: &str, rest: &str) -> Vec<u8> {
    let id = format!("seen-{:016x}", rand::random::<u64>());
    let webhook = Webhook::product(1, &id, PAYLOAD.as_bytes().to_vec());
    [webhook.head_with(framing), rest.as_bytes().to_vec()].concat()
}

/// Every shape.
pub fn all() -> Vec<Shape> {
    [lengths(), chunks(), heads(), smuggling()].concat()
}

/// A Content-Length that is invalid, or differs from the length of the body.
pub fn lengths() -> Vec<Shape> {
    let length = |value: &str| framed(&format!("Content-Length: {value}"), PAYLOAD);
    let two =
        |a: u8, b: u8| framed(&format!("Content-Length: {a}\r\nContent-Length: {b}"), PAYLOAD);
    let short = [length("7"), hidden()].concat();
    vec![
        shape("longer than the body", length("100"), &[408]),
        shape("shorter than the body", short, &[401, 400]),
        shape("negative", length("-8"), &[400]),
        shape("signed", length("+8"), &[400]),
        shape("hexadecimal", length("0x8"), &[400]),
        shape("a fraction", length("8.0"), &[400]),
        shape("empty", length(""), &[400]),
        shape("a list", length("8, 8"), &[400]),
        shape("2 to the 64", length("18446744073709551616"), &[400]),
        shape("2 to the 64, less 1", length("18446744073709551615"), &[431]),
        shape("2 to the 63", length("9223372036854775808"), &[413]),
        shape("two different", two(8, 9), &[400]),
        shape("two different, the other way round", two(9, 8), &[400]),
        shape("the same twice", two(8, 8), &[200]),
        shape("none", framed("X: y", ""), &[401]),
    ]
}

/// Chunked bodies that violate the chunk format.
pub fn chunks() -> Vec<Shape> {
    let chunked = |rest: &str| framed("Transfer-Encoding: chunked", rest);
    let with = |size: &str| chunked(&CHUNKED.replacen("8\r\n", size, 1));
    let endless = "a".repeat(200_000);
    let trailers = "a: b\r\n".repeat(200);
    vec![
        shape("as it should be", chunked(CHUNKED), &[200]),
        shape("white space behind the size", with("8 \r\n"), &[200]),
        shape("leading zeros", with("0008\r\n"), &[200]),
        shape("an extension", with("8;a=b\r\n"), &[200]),
        shape("an endless extension", with(&format!("8;{endless}\r\n")), &[400]),
        shape("a line feed alone behind the size", with("8\n"), &[400]),
        shape("a line feed in an extension", with("8;a\nb\r\n"), &[400]),
        shape("a carriage return alone behind the size", with("8\r"), &[400]),
        shape("white space before the size", with(" 8\r\n"), &[400]),
        shape("a negative size", with("-8\r\n"), &[400]),
        shape("a size with a sign", with("+8\r\n"), &[400]),
        shape("a size with 0x", with("0x8\r\n"), &[400]),
        shape("no size", with("\r\n"), &[400]),
        shape("a size of 68 bits", with("10000000000000008\r\n"), &[400]),
        shape("a size of 2 to the 64, less 1", with("FFFFFFFFFFFFFFFF\r\n"), &[408]),
        shape("data longer than its size", with("7\r\n"), &[400]),
        shape("data shorter than its size", with("9\r\n"), &[400]),
        shape("no last chunk", chunked("8\r\n{\"id\":1}\r\n"), &[408]),
        shape("a trailer", chunked("8\r\n{\"id\":1}\r\n0\r\nX-Shopify-Topic: a\r\n\r\n"), &[200]),
        shape("many trailers", chunked(&format!("0\r\n{trailers}\r\n")), &[400]),
        shape("an endless trailer", chunked(&format!("0\r\na: {endless}\r\n\r\n")), &[400]),
    ]
}

/// Heads that are not HTTP/1.1, or too large.
pub fn heads() -> Vec<Shape> {
    let line = |line: &str| framed(&format!("Content-Length: 8\r\n{line}"), PAYLOAD);
    let raw = |text: &str| text.as_bytes().to_vec();
    let request_line = |begin: &str| {
        let request = String::from_utf8(line("X: y")).expect("a test's request is text");
        raw(&request.replacen("POST /webhooks HTTP/1.1", begin, 1))
    };
    let bare = String::from_utf8(line("X: y")).expect("a test's request is text");
    let long = "a".repeat(100_000);
    vec![
        shape("200 headers", line("a: b\r\n".repeat(200).trim_end()), &[431]),
        shape("a header of 100 KB", line(&format!("a: {long}")), &[431]),
        shape("a header name of 100 KB", line(&format!("{long}: a")), &[431]),
        shape("a target of 100 KB", request_line(&format!("POST /{long} HTTP/1.1")), &[431]),
        shape("NUL in a value", line("a: b\0c"), &[400]),
        shape("NUL in a name", line("a\0: b"), &[400]),
        shape("white space before the colon", line("a : b"), &[400]),
        shape("no colon", line("ab"), &[400]),
        shape("no name", line(": b"), &[400]),
        shape("a line folded", line("a: b\r\n c"), &[400]),
        shape("a carriage return in a value", line("a: b\rc"), &[400]),
        shape("two hosts", line("Host: other.example"), &[400]),
        shape("the same host twice", line("Host: hooks.example"), &[400]),
        // RFC 9112, section 2.2: a recipient may accept it as the end of a line.
        shape("line feeds alone", raw(&bare.replace("\r\n", "\n")), &[200]),
        shape("HTTP/0.9", raw("GET /\r\n\r\n"), &[400]),
        shape("HTTP/1.2", request_line("POST / HTTP/1.2"), &[400]),
        shape("http in lower case", request_line("POST / http/1.1"), &[400]),
        shape("white space in the target", request_line("POST /a b HTTP/1.1"), &[400]),
        shape("an absolute target", request_line("POST http://a.example/b HTTP/1.1"), &[200]),
        shape("an absolute target of the root", request_line("POST http://a.b/ HTTP/1.1"), &[200]),
        shape("a target without a path", request_line("POST * HTTP/1.1"), &[400]),
        shape("an absolute one without", request_line("POST http://a.example HTTP/1.1"), &[400]),
        shape("an absolute query alone", request_line("POST http://a.example?b HTTP/1.1"), &[400]),
        shape("an authority as the target", request_line("POST a.example:80 HTTP/1.1"), &[400]),
        shape("CONNECT", raw("CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n"), &[405]),
        shape("a request to upgrade", line("Connection: Upgrade\r\nUpgrade: h2c"), &[200]),
        shape("the greeting of TLS", b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03".to_vec(), &[400]),
        // Closed without an answer: the client does not understand HTTP/1.1.
        shape("the preface of HTTP/2", HTTP2.to_vec(), &[]),
    ]
}

/// Requests with an ambiguous end. One reading reveals another request, which is hidden.
pub fn smuggling() -> Vec<Shape> {
    let mut shapes = by_coding();
    shapes.extend(by_place());
    shapes
}

/// By Content-Length, the hidden request is in the body; by these lines, it follows the body.
fn by_length(lines: &str) -> Vec<u8> {
    let rest = rest();
    framed(&format!("Content-Length: {}\r\n{lines}", rest.len()), &rest)
}

/// By these lines, the hidden request is in the only chunk of the body.
fn by_chunks(lines: &str) -> Vec<u8> {
    let hidden = hidden_text();
    framed(lines, &format!("{:x}\r\n{hidden}\r\n0\r\n\r\n", hidden.len()))
}

fn rest() -> String {
    format!("{CHUNKED}{}", hidden_text())
}

fn hidden_text() -> String {
    String::from_utf8(hidden()).expect("a test's request is text")
}

/// Requests whose body coding is ambiguous.
fn by_coding() -> Vec<Shape> {
    let coded = |what, coding: &str| {
        shape(what, by_length(&format!("Transfer-Encoding: {coding}")), &[400])
    };
    vec![
        coded("identity", "identity"),
        coded("identity, chunked", "identity, chunked"),
        coded("chunked, identity", "chunked, identity"),
        shape("gzip, chunked", by_chunks("Transfer-Encoding: gzip, chunked"), &[400]),
        coded("chunked twice", "chunked, chunked"),
        coded("a coding that is none", "xchunked"),
        shape("an empty coding", by_length("Transfer-Encoding:"), &[400]),
        coded("quoted", "\"chunked\""),
        coded("two codings in two lines", "chunked\r\nTransfer-Encoding: identity"),
        coded(
            "two codings in two lines, the other way round",
            "identity\r\nTransfer-Encoding: chunked",
        ),
        shape("white space before the colon", by_length("Transfer-Encoding : chunked"), &[400]),
        coded("a vertical tab", "\x0bchunked"),
        shape("another header's name", by_length("Transfer_Encoding: chunked"), &[401]),
    ]
}

/// Requests in which the place of the coding, or the request that it belongs to, is ambiguous.
fn by_place() -> Vec<Shape> {
    let in_get = hidden();
    let get = format!("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", in_get.len());
    let rest = rest();
    let after = format!("Transfer-Encoding: chunked\r\nContent-Length: {}", rest.len());
    let chunked = by_length("Transfer-Encoding: chunked");
    let of_old = String::from_utf8(chunked.clone()).expect("it is text");
    let of_old = of_old.replacen("HTTP/1.1", "HTTP/1.0", 1).into_bytes();
    vec![
        shape("length, then chunked", chunked, &[200]),
        shape("chunked, then length", framed(&after, &rest), &[200]),
        shape(
            "chunks, and a length that ends before them",
            by_chunks("Content-Length: 5\r\nTransfer-Encoding: chunked"),
            &[401],
        ),
        shape("a folded line", by_length("X: y\r\n Transfer-Encoding: chunked"), &[400]),
        shape("behind a line feed alone", by_length("X: y\nTransfer-Encoding: chunked"), &[200]),
        shape("behind a carriage return", by_length("X: y\rTransfer-Encoding: chunked"), &[400]),
        shape("behind a NUL", by_length("X: y\0Transfer-Encoding: chunked"), &[400]),
        shape("chunks of HTTP/1.0", of_old, &[400]),
        shape("the body of a GET", [get.into_bytes(), in_get].concat(), &[405]),
        shape(
            "behind two hosts",
            [framed("Host: b\r\nContent-Length: 8", PAYLOAD), hidden()].concat(),
            &[400],
        ),
    ]
}

/// Several requests in one write, one of them forged. Each is answered in order.
pub fn pipelined() -> Shape {
    let good = || framed("Content-Length: 8", PAYLOAD);
    let forged = framed("Content-Length: 8", r#"{"id":2}"#);
    let bytes = [good(), good(), good(), forged, good()].concat();
    shape("five in one write", bytes, &[200, 200, 200, 401, 200])
}
