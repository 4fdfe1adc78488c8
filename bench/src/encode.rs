//! Writes webhooks in the format of a load generator.

use std::io::Write;
use std::path::PathBuf;
use std::{fs, io};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::target::Target;
use crate::webhook::Webhook;

/// Output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// `vegeta attack -format=json`: one JSON object per line, with the body in base64.
    VegetaJson,
    /// `vegeta attack -format=http`: text, with each body in a file under `--bodies`.
    VegetaHttp,
    /// `bench/wrk.lua`: as `raw`, with the length in ten decimal digits before each request.
    Wrk,
    /// HTTP/1.1 requests one after the other, in their form on the wire.
    Raw,
}

/// Writer of webhooks in one format.
pub struct Encoder {
    /// Output format.
    pub format: Format,
    /// Template of the headers.
    pub target: Target,
    /// Directory for the bodies of `vegeta-http`.
    pub bodies: PathBuf,
}

impl Encoder {
    /// Appends webhook number `number`. Returns an error only for [`Format::VegetaHttp`], which
    /// writes files.
    pub fn encode(&self, number: u64, webhook: &Webhook, out: &mut Vec<u8>) -> io::Result<()> {
        match self.format {
            Format::VegetaJson => self.vegeta_json(webhook, out),
            Format::VegetaHttp => return self.vegeta_http(number, webhook, out),
            Format::Raw => self.raw(webhook, out),
            Format::Wrk => {
                let start = out.len();
                out.extend_from_slice(b"0000000000");
                self.raw(webhook, out);
                let length = format!("{:010}", out.len() - start - 10);
                out[start..start + 10].copy_from_slice(length.as_bytes());
            }
        }
        Ok(())
    }

    fn raw(&self, webhook: &Webhook, out: &mut Vec<u8>) {
        let (authority, path) = self.target.authority_and_path();
        let start = format!("{} {path} HTTP/1.1\r\nHost: {authority}\r\n", self.target.method);
        out.extend_from_slice(start.as_bytes());
        for (name, value) in &self.target.headers {
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(b": ");
            webhook.write_value(value, out);
            out.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(&webhook.body);
    }

    fn vegeta_json(&self, webhook: &Webhook, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"method\":");
        json_string(&self.target.method, out);
        out.extend_from_slice(b",\"url\":");
        json_string(&self.target.url, out);
        out.extend_from_slice(b",\"header\":{");
        let mut value_text = Vec::new();
        for (index, (name, value)) in self.vegeta_headers().enumerate() {
            value_text.clear();
            webhook.write_value(value, &mut value_text);
            out.extend_from_slice(if index == 0 { b"" } else { b"," });
            json_string(name, out);
            out.extend_from_slice(b":[");
            json_string(&String::from_utf8_lossy(&value_text), out);
            out.push(b']');
        }
        out.extend_from_slice(b"},\"body\":\"");
        out.extend_from_slice(STANDARD.encode(&webhook.body).as_bytes());
        out.extend_from_slice(b"\"}\n");
    }

    fn vegeta_http(&self, number: u64, webhook: &Webhook, out: &mut Vec<u8>) -> io::Result<()> {
        let path = self.bodies.join(format!("{number}.json"));
        fs::write(&path, &webhook.body)?;
        writeln!(out, "{} {}", self.target.method, self.target.url)?;
        for (name, value) in self.vegeta_headers() {
            write!(out, "{name}: ")?;
            webhook.write_value(value, out);
            out.push(b'\n');
        }
        writeln!(out, "@{}\n", path.display())
    }

    /// Headers without Content-Length, because vegeta adds it.
    fn vegeta_headers(&self) -> impl Iterator<Item = &(String, crate::target::Value)> {
        let headers = self.target.headers.iter();
        headers.filter(|(name, _)| !name.eq_ignore_ascii_case("content-length"))
    }
}

fn json_string(text: &str, out: &mut Vec<u8>) {
    serde_json::to_writer(out, text).expect("BUG: text is always JSON and a Vec takes it");
}
