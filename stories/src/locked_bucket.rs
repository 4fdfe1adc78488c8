//! A bucket that forbids to write over objects. Its policy asks for `If-None-Match`, or it does not know that.
//! It speaks as much of S3 as an archiver and a reader need, and its objects are files.
//!
//! Of the first object it keeps a half, and says that it failed: the object is damaged from then on. A bucket without
//! `If-None-Match` keeps all of it, and says the same. A story can ask for another one.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::receipt::RequestHead;
use crate::wire::Incoming;

const BUCKET: &str = "locked";
/// Directory of the archive in the bucket.
const PREFIX: &str = "cells";

/// A running server. Once dropped, it accepts no more connections.
#[derive(Debug)]
pub struct LockedBucket {
    files: Arc<LockedFiles>,
    endpoint: String,
    accepting: JoinHandle<()>,
}

#[derive(Debug)]
struct LockedFiles {
    root: PathBuf,
    /// True if objects are written with `If-None-Match` alone.
    is_conditional: bool,
    has_failed: AtomicBool,
    refused: AtomicU64,
}

/// Status, headers and body.
type BucketAnswer = (&'static str, String, Vec<u8>);

impl LockedBucket {
    /// Starts an empty bucket, whose objects are in this directory, and which asks for `If-None-Match`.
    pub async fn start(directory: &Path) -> Self {
        Self::start_with(directory, true).await
    }

    /// The same without `If-None-Match`.
    pub async fn start_unconditional(directory: &Path) -> Self {
        Self::start_with(directory, false).await
    }

    async fn start_with(directory: &Path, is_conditional: bool) -> Self {
        let root = directory.to_owned();
        std::fs::create_dir_all(root.join(PREFIX)).expect("make a bucket");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("bind a bucket");
        let address: SocketAddr = listener.local_addr().expect("the bucket's address");
        let files = Arc::new(LockedFiles {
            root,
            is_conditional,
            has_failed: AtomicBool::new(false),
            refused: AtomicU64::new(0),
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&files)));
        Self { files, endpoint: format!("http://{address}"), accepting }
    }

    /// URL of the archive.
    pub fn url(&self) -> String {
        format!("s3://{BUCKET}/{PREFIX}")
    }

    /// Directory that holds the archive.
    pub fn archive(&self) -> PathBuf {
        self.files.root.join(PREFIX)
    }

    /// Settings with which it is reached.
    pub fn settings(&self) -> Vec<(&str, &str)> {
        let conditional_put = if self.files.is_conditional { "etag" } else { "disabled" };
        vec![
            ("AWS_CONDITIONAL_PUT", conditional_put),
            ("AWS_ENDPOINT", self.endpoint.as_str()),
            ("AWS_ALLOW_HTTP", "true"),
            ("AWS_REGION", "us-east-1"),
            ("AWS_ACCESS_KEY_ID", "story"),
            ("AWS_SECRET_ACCESS_KEY", "hush"),
            ("AWS_DISABLE_BULK_DELETE", "true"),
        ]
    }

    /// Attempts to write over an object, or to write one without `If-None-Match`, which were refused.
    pub fn refused(&self) -> u64 {
        self.files.refused.load(Ordering::SeqCst)
    }

    /// Does with the next object that is written what it did with the first one.
    pub fn fail_next(&self) {
        self.files.has_failed.store(false, Ordering::SeqCst);
    }
}

impl Drop for LockedBucket {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, files: Arc<LockedFiles>) {
    while let Ok((stream, _)) = listener.accept().await {
        let files = Arc::clone(&files);
        // The other side broke the connection.
        tokio::spawn(async move { serve(stream, &files).await.ok() });
    }
}

async fn serve(stream: TcpStream, files: &LockedFiles) -> io::Result<()> {
    let (read, mut outgoing) = stream.into_split();
    let mut incoming = Incoming::new(read);
    while let Some(head) = incoming.head().await? {
        let head = RequestHead::parse(&head);
        let body = incoming.body(head.body_bytes()).await?;
        let (status, headers, body) = files.answer(&head, &body)?;
        let bytes = body.len();
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: {bytes}\r\n{headers}\r\n");
        outgoing.write_all(&[head.as_bytes(), &body[..]].concat()).await?;
    }
    Ok(())
}

impl LockedFiles {
    fn answer(&self, head: &RequestHead, body: &[u8]) -> io::Result<BucketAnswer> {
        let (path, query) = head.target.split_once('?').unwrap_or((&head.target, ""));
        let key = path.trim_start_matches('/').strip_prefix(BUCKET).unwrap_or_default();
        let key = key.trim_start_matches('/');
        match (&*head.method, key) {
            ("GET", "") => Ok(self.list(query)),
            ("GET", key) => self.get(key, head.headers.text("range")),
            ("PUT", key) => self.put(key, body, head.headers.get("if-none-match").is_some()),
            ("DELETE", key) if key.ends_with(".spwa") => self.delete(key),
            _ => Ok(("403 Forbidden", String::new(), Vec::new())),
        }
    }

    fn put(&self, key: &str, body: &[u8], is_conditional: bool) -> io::Result<BucketAnswer> {
        let path = self.root.join(key);
        let is_object = key.ends_with(".spwa");
        let is_there = is_object && path.exists();
        if is_there && is_conditional {
            return Ok(("412 Precondition Failed", String::new(), Vec::new()));
        }
        if is_there || (is_object && is_conditional != self.is_conditional) {
            self.refused.fetch_add(1, Ordering::SeqCst);
            return Ok(("403 Forbidden", String::new(), Vec::new()));
        }
        std::fs::create_dir_all(path.parent().expect("a directory"))?;
        if is_object && !self.has_failed.swap(true, Ordering::SeqCst) {
            let kept = if self.is_conditional { body.len() / 2 } else { body.len() };
            std::fs::write(path, &body[..kept])?;
            return Ok(("500 Internal Server Error", String::new(), Vec::new()));
        }
        std::fs::write(path, body)?;
        Ok(("200 OK", "ETag: \"e\"\r\n".to_owned(), Vec::new()))
    }

    fn delete(&self, key: &str) -> io::Result<BucketAnswer> {
        match std::fs::remove_file(self.root.join(key)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(("200 OK", String::new(), Vec::new())),
        }
    }

    fn get(&self, key: &str, range: Option<&str>) -> io::Result<BucketAnswer> {
        const ABOUT: &str = "ETag: \"e\"\r\nLast-Modified: Thu, 01 Jan 1970 00:00:00 GMT\r\n";
        let Ok(bytes) = std::fs::read(self.root.join(key)) else {
            return Ok(("404 Not Found", String::new(), Vec::new()));
        };
        let ends = range.and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
        let ends = ends.and_then(|(from, to)| {
            Some((from.parse::<usize>().ok()?, to.parse::<usize>().ok()?.min(bytes.len() - 1)))
        });
        let Some((from, to)) = ends else { return Ok(("200 OK", ABOUT.to_owned(), bytes)) };
        let whole = bytes.len();
        let headers = format!("{ABOUT}Content-Range: bytes {from}-{to}/{whole}\r\n");
        Ok(("206 Partial Content", headers, bytes[from..=to].to_vec()))
    }

    fn list(&self, query: &str) -> BucketAnswer {
        let value = |name: &str| {
            let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
            pairs.find(|(key, _)| *key == name).map(|(_, value)| value.replace("%2F", "/"))
        };
        let prefix = value("prefix").unwrap_or_default();
        let is_flat = value("delimiter").is_none();
        let (mut contents, mut directories) = (String::new(), Vec::new());
        for (key, bytes) in self.keys() {
            let Some(rest) = key.strip_prefix(&prefix) else { continue };
            match rest.split_once('/') {
                Some((directory, _)) if !is_flat => directories.push(directory.to_owned()),
                _ => contents.push_str(&format!(
                    "<Contents><Key>{key}</Key><Size>{bytes}</Size>\
                     <LastModified>1970-01-01T00:00:00.000Z</LastModified><ETag>e</ETag></Contents>"
                )),
            }
        }
        directories.dedup();
        let directories: String = directories
            .iter()
            .map(|name| {
                format!("<CommonPrefixes><Prefix>{prefix}{name}/</Prefix></CommonPrefixes>")
            })
            .collect();
        let list = format!("<ListBucketResult>{contents}{directories}</ListBucketResult>");
        ("200 OK", "Content-Type: application/xml\r\n".to_owned(), list.into_bytes())
    }

    /// Keys of all objects with their sizes, sorted.
    fn keys(&self) -> Vec<(String, u64)> {
        let (mut found, mut left) = (Vec::new(), vec![self.root.clone()]);
        while let Some(directory) = left.pop() {
            for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
                let path = entry.path();
                if path.is_dir() {
                    left.push(path);
                } else if let Ok(key) = path.strip_prefix(&self.root) {
                    let bytes = entry.metadata().map_or(0, |about| about.len());
                    found.push((key.display().to_string(), bytes));
                }
            }
        }
        found.sort_unstable();
        found
    }
}
