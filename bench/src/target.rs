//! Target template (`loadtest`): vegeta's own text format with `{placeholders}` in header values.
//! One readable file defines the form of a webhook on the wire for every load generator.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// Value that differs between webhooks, written as `{name}` in the template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placeholder {
    /// `{body_bytes}`: length of the body.
    BodyBytes,
    /// `{event_id}`: a new UUID.
    EventId,
    /// `{hmac}`: signature of the body.
    Hmac,
    /// `{product_id}`: id in the body.
    ProductId,
    /// `{shop}`: one of the simulated shops.
    Shop,
    /// `{triggered_at}`: time of creation, RFC 3339 with nanoseconds.
    TriggeredAt,
    /// `{webhook_id}`: a new UUID.
    WebhookId,
}

/// Value of a header, either fixed or inserted for each webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Value that is the same in every webhook.
    Fixed(String),
    /// Value that differs in every webhook.
    Filled(Placeholder),
}

/// Request line, headers in order, and the path of the body's template.
#[derive(Clone, Debug)]
pub struct Target {
    /// HTTP method, such as `POST`.
    pub method: String,
    /// URL with scheme, authority, path and query.
    pub url: String,
    /// Header names as written, and values, in order.
    pub headers: Vec<(String, Value)>,
    /// Path of the body's template, relative to the directory of the target.
    pub body: PathBuf,
}

/// Error in a template.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// Path of the template.
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
    /// A line is not a request line, a header, `@body` or a comment.
    #[error("line {line}: {reason}")]
    Line {
        /// Line number, from 1.
        line: usize,
        /// Description of the error.
        reason: String,
    },
    /// The file ends too early.
    #[error("no request line such as `POST http://127.0.0.1:8080/webhooks`, or no `@body` line")]
    Incomplete,
}

impl Target {
    /// Reads the template. `@request.json` is expected in the same directory.
    pub fn read(path: &Path) -> Result<Self, TargetError> {
        let text = fs::read_to_string(path)
            .map_err(|source| TargetError::Read { path: path.to_owned(), source })?;
        let mut target = Self::parse(&text)?;
        target.body = path.parent().unwrap_or(Path::new("")).join(&target.body);
        Ok(target)
    }

    fn parse(text: &str) -> Result<Self, TargetError> {
        let mut request = None;
        let mut headers = Vec::new();
        let mut body = None;
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            let wrong = |reason: String| TargetError::Line { line: index + 1, reason };
            if line.is_empty() || line.starts_with('#') {
                continue;
            } else if request.is_none() {
                let (method, url) = line
                    .split_once(' ')
                    .ok_or_else(|| wrong(format!("expected a method and a URL, not `{line}`")))?;
                request = Some((method.to_owned(), url.trim().to_owned()));
            } else if let Some(path) = line.strip_prefix('@') {
                body = Some(PathBuf::from(path));
            } else {
                let (name, value) = line
                    .split_once(':')
                    .ok_or_else(|| wrong(format!("expected a header, not `{line}`")))?;
                headers.push((name.trim().to_owned(), Value::parse(value.trim()).map_err(wrong)?));
            }
        }
        let ((method, url), body) = request.zip(body).ok_or(TargetError::Incomplete)?;
        Ok(Self { method, url, headers, body })
    }

    /// Value of a header, whose name is compared without regard to case.
    pub fn value(&self, name: &str) -> Option<&Value> {
        self.headers
            .iter()
            .find(|(have, _)| have.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }

    /// Returns the authority (for `Host`) and the path with its query (for the request line).
    pub fn authority_and_path(&self) -> (&str, &str) {
        let rest = self.url.split_once("://").map_or(self.url.as_str(), |(_, rest)| rest);
        rest.find('/').map_or((rest, "/"), |slash| rest.split_at(slash))
    }
}

impl Value {
    /// Text that is the same in every webhook.
    pub fn fixed(&self) -> Option<&str> {
        match self {
            Self::Fixed(text) => Some(text),
            Self::Filled(_) => None,
        }
    }

    fn parse(value: &str) -> Result<Self, String> {
        let Some(name) = value.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) else {
            return Ok(Self::Fixed(value.to_owned()));
        };
        Ok(Self::Filled(match name {
            "body_bytes" => Placeholder::BodyBytes,
            "event_id" => Placeholder::EventId,
            "hmac" => Placeholder::Hmac,
            "product_id" => Placeholder::ProductId,
            "shop" => Placeholder::Shop,
            "triggered_at" => Placeholder::TriggeredAt,
            "webhook_id" => Placeholder::WebhookId,
            _ => return Err(format!("unknown placeholder {{{name}}}")),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_is_read_in_order() {
        let target =
            Target::parse("# why\nPOST http://h:1/p?q=1\nB: x\n A: {shop}\n@request.json").unwrap();
        assert_eq!(target.authority_and_path(), ("h:1", "/p?q=1"));
        assert_eq!(target.headers[0], ("B".into(), Value::Fixed("x".into())));
        assert_eq!(target.headers[1], ("A".into(), Value::Filled(Placeholder::Shop)));
        assert_eq!(target.body, Path::new("request.json"));
    }

    #[test]
    fn a_mistake_names_its_line() {
        let error = Target::parse("POST http://h/\nA: {shopp}\n@b").unwrap_err().to_string();
        assert_eq!(error, "line 2: unknown placeholder {shopp}");
        assert!(matches!(Target::parse("POST http://h/"), Err(TargetError::Incomplete)));
    }
}
