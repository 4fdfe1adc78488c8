//! Scripts and styles, built into the program. An asset's URL holds a hash of its content, so a
//! browser may keep it for ever.

use std::fmt::Write as _;
use std::sync::LazyLock;

use axum::extract::Path;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};

use crate::problem::ProblemDetails;

/// Path of all assets, for the table of routes.
pub const PATH: &str = "/assets/{hash}/{name}";

/// Hexadecimal digits of the hash in a URL.
const DIGITS: usize = 16;
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const FOR_EVER: &str = "public, max-age=31536000, immutable";

/// An asset: file name and content.
struct Asset {
    name: &'static str,
    media_type: &'static str,
    content: &'static [u8],
}

/// All assets. Those in `vendor` are copies of a release; `assets/vendor/README.md` names it.
const ASSETS: [Asset; 5] = [
    Asset {
        name: "console.css",
        media_type: STYLE,
        content: include_bytes!("../assets/console.css"),
    },
    Asset {
        name: "console.js",
        media_type: SCRIPT,
        content: include_bytes!("../assets/console.js"),
    },
    Asset {
        name: "htmx.min.js",
        media_type: SCRIPT,
        content: include_bytes!("../assets/vendor/htmx.min.js"),
    },
    Asset {
        name: "uPlot.iife.min.js",
        media_type: SCRIPT,
        content: include_bytes!("../assets/vendor/uPlot.iife.min.js"),
    },
    Asset {
        name: "uPlot.min.css",
        media_type: STYLE,
        content: include_bytes!("../assets/vendor/uPlot.min.css"),
    },
];

/// URL of each asset, in the order of [`ASSETS`].
static URLS: LazyLock<[String; ASSETS.len()]> =
    LazyLock::new(|| ASSETS.map(|asset| format!("/assets/{}/{}", hash(asset.content), asset.name)));

/// URL of an asset, which changes with its content.
pub(crate) fn url(name: &str) -> &'static str {
    let place = ASSETS.iter().position(|asset| asset.name == name);
    &URLS[place.expect("BUG: every asset that a page names is in the list")]
}

/// Handler of [`PATH`].
///
/// # Errors
/// If there is no such asset, or its content is another one.
pub async fn asset(Path((hash, name)): Path<(String, String)>) -> Result<Response, ProblemDetails> {
    let asked = format!("/assets/{hash}/{name}");
    let found = ASSETS.into_iter().zip(URLS.iter()).find(|(_, url)| **url == asked);
    let (asset, _) = found.ok_or_else(|| {
        ProblemDetails::not_found(
            "the console has another version of this file: load the page again",
        )
    })?;
    let headers = [(CONTENT_TYPE, asset.media_type), (CACHE_CONTROL, FOR_EVER)];
    Ok((headers, asset.content).into_response())
}

fn hash(content: &[u8]) -> String {
    let mut text = digest(content);
    text.truncate(DIGITS);
    text
}

/// SHA-256 in hexadecimal digits.
fn digest(content: &[u8]) -> String {
    let mut text = String::new();
    for byte in Sha256::digest(content) {
        write!(text, "{byte:02x}").expect("BUG: a String takes everything");
    }
    text
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;

    use super::*;

    /// SHA-256 of the files as their authors published them (`assets/vendor/README.md`).
    const VENDORED: [(&str, &str); 3] = [
        ("htmx.min.js", "d6fdc75f204e6bdefa99b69bf1e6d4ac69b8a364f77929f45c13476b4000f717"),
        ("uPlot.iife.min.js", "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f"),
        ("uPlot.min.css", "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04"),
    ];

    #[test]
    fn vendored_files_are_as_published() {
        for (name, expected) in VENDORED {
            let found = ASSETS.iter().find(|asset| asset.name == name).unwrap();
            assert_eq!(digest(found.content), expected, "{name}");
        }
    }

    #[test]
    fn own_scripts_and_styles_name_no_other_host() {
        for asset in ASSETS.iter().filter(|asset| asset.name.starts_with("console.")) {
            let text = String::from_utf8_lossy(asset.content);
            assert!(!text.contains("://") && !text.contains("eval("), "{}", asset.name);
        }
    }

    #[tokio::test]
    async fn an_asset_is_kept_for_ever_under_its_hash() {
        let parts: Vec<&str> = url("console.css").split('/').collect();
        let ask = |hash: &str| asset(Path((hash.to_owned(), "console.css".to_owned())));
        let answer = ask(parts[2]).await.unwrap();
        assert_eq!(answer.headers()[CACHE_CONTROL], FOR_EVER);
        assert_eq!(answer.headers()[CONTENT_TYPE], STYLE);
        let problem = ask("0123456789abcdef").await.unwrap_err();
        assert_eq!(problem.status(), StatusCode::NOT_FOUND);
    }
}
