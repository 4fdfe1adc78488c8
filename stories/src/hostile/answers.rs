//! Answers of a hostile backend: a table of bytes, and how the connection continues.

use std::time::Duration;

use crate::behaviour::Behaviour;

/// A name and an answer.
pub type Answer = (&'static str, Behaviour);

/// All answers that are invalid: each must be followed by another attempt.
pub fn all() -> Vec<Answer> {
    [without_an_end(), wrong(), too_much()].concat()
}

fn wire(begins: &str, repeats: &[u8], every: Duration) -> Behaviour {
    Behaviour::Wire {
        begins: begins.as_bytes().to_vec(),
        repeats: repeats.to_vec(),
        every,
        closes: true,
    }
}

fn endless(begins: &str, repeats: &[u8]) -> Behaviour {
    // Writes at once as much as a socket accepts.
    wire(begins, &repeats.repeat((64 << 10) / repeats.len()), Duration::ZERO)
}

fn whole(answer: &str) -> Behaviour {
    wire(answer, b"", Duration::ZERO)
}

fn kept_open(answer: &str) -> Behaviour {
    let (begins, repeats) = (answer.as_bytes().to_vec(), Vec::new());
    Behaviour::Wire { begins, repeats, every: Duration::ZERO, closes: false }
}

fn without_an_end() -> Vec<Answer> {
    let slowly = |begins, repeats| wire(begins, repeats, Duration::from_millis(20));
    vec![
        ("a status line without an end", endless("HTTP/1.1 200 ", b"a")),
        ("a header without an end", endless("HTTP/1.1 200 OK\r\na: ", b"a")),
        ("headers without an end", endless("HTTP/1.1 200 OK\r\n", b"a: b\r\n")),
        ("1xx without an end", endless("", b"HTTP/1.1 100 Continue\r\n\r\n")),
        ("103 with headers without an end", endless("", b"HTTP/1.1 103 Early\r\nLink: a\r\n\r\n")),
        ("a body without an end", endless("HTTP/1.1 503 No\r\n\r\n", b"a")),
        (
            "chunks without an end",
            endless("HTTP/1.1 503 No\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\na\r\n"),
        ),
        (
            "an extension without an end",
            endless("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;", b"a"),
        ),
        (
            "trailers without an end",
            endless("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"a: b\r\n"),
        ),
        ("garbage without an end", endless("", b"\xff\x00\x16\x03")),
        ("empty lines without an end", endless("", b"\r\n")),
        ("a head that drips", slowly("HTTP/1.1 200 OK\r\n", b"a")),
        ("a body that drips", slowly("HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n", b"a")),
        ("nothing but a 100", slowly("HTTP/1.1 100 Continue\r\n\r\n", b"")),
    ]
}

fn wrong() -> Vec<Answer> {
    vec![
        ("a length longer than the body", whole("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab")),
        (
            "two lengths",
            whole("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"),
        ),
        ("a negative length", whole("HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n")),
        (
            "a length of 68 bits",
            whole("HTTP/1.1 200 OK\r\nContent-Length: 295147905179352825856\r\n\r\n"),
        ),
        (
            "a length of 2 to the 63",
            whole("HTTP/1.1 200 OK\r\nContent-Length: 9223372036854775808\r\n\r\na"),
        ),
        (
            "a chunk of 68 bits",
            whole("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10000000000000008\r\na"),
        ),
        (
            "a chunk without an end",
            whole("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab"),
        ),
        ("garbage", whole("\x16\x03\x01\x02\0\x01 what?\r\n\r\n")),
        ("HTTP/2", whole("\0\0\0\x04\0\0\0\0\0")),
        ("HTTP/3.0", whole("HTTP/3.0 200 OK\r\n\r\n")),
        ("no status", whole("HTTP/1.1 OK\r\n\r\n")),
        ("a status of two digits", whole("HTTP/1.1 20 OK\r\n\r\n")),
        ("NUL in a header", whole("HTTP/1.1 200 OK\r\na: b\0c\r\n\r\n")),
        ("nothing", whole("")),
        ("half a status line", whole("HTTP/1.1 200")),
        (
            "an upgrade nobody asked for",
            whole("HTTP/1.1 101 Switching\r\nUpgrade: a\r\nConnection: upgrade\r\n\r\n"),
        ),
        // The second answer belongs to no request, and least of all to the next one.
        (
            "two answers to one request",
            kept_open(
                "HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
            ),
        ),
    ]
}

fn too_much() -> Vec<Answer> {
    let later = |value: &str| {
        whole(&format!("HTTP/1.1 503 No\r\nContent-Length: 0\r\nRetry-After: {value}\r\n\r\n"))
    };
    let headers = "a: b\r\n".repeat(200);
    let long = "a".repeat(1 << 20);
    vec![
        ("200 headers", whole(&format!("HTTP/1.1 200 OK\r\n{headers}Content-Length: 0\r\n\r\n"))),
        (
            "a header of 1 MB",
            whole(&format!("HTTP/1.1 200 OK\r\na: {long}\r\nContent-Length: 0\r\n\r\n")),
        ),
        ("Retry-After: 4294967295", later("4294967295")),
        ("Retry-After: 4294967296", later("4294967296")),
        ("Retry-After of 30 digits", later(&"9".repeat(30))),
        ("Retry-After: -1", later("-1")),
        ("Retry-After in the year 9999", later("Fri, 31 Dec 9999 23:59:59 GMT")),
        ("Retry-After in the year 99999", later("Fri, 31 Dec 99999 23:59:59 GMT")),
        ("a Retry-After of 100 KB", later(&"9".repeat(100_000))),
    ]
}
