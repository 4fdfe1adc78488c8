//! Webhooks that are answered 200 and not stored, because nobody needs them.
//!
//! Compliance topics and `app/uninstalled` are never ignored.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use http::HeaderMap;
use spillway_process::reload::FromFiles;
use spillway_webhook::shopify::{
    Headers, is_barrier, is_compliance, is_shop_domain, is_topic_match,
};

/// Domains of shops.
type ShopDomains = HashSet<Box<str>>;

/// Topics and shops whose webhooks are ignored.
#[derive(Debug, Default)]
pub struct Ignored {
    topics: Vec<String>,
    shops: ArcSwap<ShopDomains>,
    file: Option<PathBuf>,
}

/// Setting that names a webhook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IgnoredBy {
    /// `IGNORE_TOPICS`.
    Topic,
    /// `IGNORE_SHOPS_FILE`.
    Shop,
}

impl IgnoredBy {
    /// Value of the label `by`.
    pub fn label(self) -> &'static str {
        match self {
            Self::Topic => "topic",
            Self::Shop => "shop",
        }
    }
}

/// Settings of what is ignored.
#[derive(Debug, Clone, Default)]
pub struct IgnoreSettings {
    /// Topics, or kinds such as `carts/*`.
    pub topics: Vec<String>,
    /// Domains of shops.
    pub shops: HashSet<Box<str>>,
    /// File from which the shops were read, if any.
    pub shops_file: Option<PathBuf>,
}

impl Ignored {
    /// Starts with these settings.
    pub fn new(settings: IgnoreSettings) -> Self {
        let IgnoreSettings { topics, shops, shops_file } = settings;
        Self { topics, shops: ArcSwap::from_pointee(shops), file: shops_file }
    }

    /// Setting by which a webhook with these headers is not to be stored, if any.
    pub fn by(&self, headers: &HeaderMap) -> Option<IgnoredBy> {
        if self.topics.is_empty() && self.file.is_none() {
            return None;
        }
        let topic = headers.topic().unwrap_or_default();
        if is_compliance(&topic) || is_barrier(&topic) {
            return None;
        }
        if self.topics.iter().any(|pattern| is_topic_match(pattern, &topic)) {
            return Some(IgnoredBy::Topic);
        }
        let shop = std::str::from_utf8(headers.shop().unwrap_or_default());
        shop.is_ok_and(|shop| self.shops.load().contains(shop)).then_some(IgnoredBy::Shop)
    }
}

impl FromFiles for Ignored {
    fn files(&self) -> Vec<PathBuf> {
        self.file.iter().cloned().collect()
    }

    fn reload(&self) -> bool {
        let Some(file) = &self.file else { return true };
        match read_shops(file) {
            Ok(shops) => {
                let count = shops.len();
                self.shops.store(Arc::new(shops));
                tracing::info!(count, "shops to ignore read again");
                true
            }
            Err(problem) => {
                tracing::error!(%problem, "IGNORE_SHOPS_FILE could not be read again; the old shops stay ignored");
                false
            }
        }
    }
}

/// Reads domains of shops, one per line. Empty lines and those that begin with `#` are skipped.
///
/// # Errors
/// A sentence that names the file, and each line that holds no domain.
pub fn read_shops(file: &Path) -> Result<HashSet<Box<str>>, String> {
    let text = std::fs::read_to_string(file);
    let text = text.map_err(|error| format!("cannot read {}: {error}", file.display()))?;
    let lines = text.lines().map(str::trim).enumerate();
    let entries = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let (good, bad): (Vec<_>, Vec<_>) = entries.partition(|(_, line)| is_shop_domain(line));
    if bad.is_empty() {
        return Ok(good.into_iter().map(|(_, line)| line.to_ascii_lowercase().into()).collect());
    }
    let bad: Vec<_> = bad.iter().map(|(at, line)| format!("{} ({line:?})", at + 1)).collect();
    let file = file.display();
    Err(format!("{file}: no domain, such as example.myshopify.com, in line {}", bad.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(topic: &str, shop: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert("x-shopify-topic", topic.parse().expect("a header value"));
        headers.insert("x-shopify-shop-domain", shop.parse().expect("a header value"));
        headers
    }

    fn file(content: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().expect("create a file");
        std::fs::write(file.path(), content).expect("write the file");
        file
    }

    #[test]
    fn topics_and_shops_are_ignored_except_what_must_arrive() {
        let file = file("# test shops\n\nTest.myshopify.com\n old.myshopify.com \n");
        let shops = read_shops(file.path()).expect("its lines are right");
        let topics = Vec::from(["carts/*", "customers/*", "Page/update"].map(str::to_owned));
        let shops_file = Some(file.path().to_owned());
        let ignored = Ignored::new(IgnoreSettings { topics, shops, shops_file });
        let by = |topic: &str, shop: &str| ignored.by(&headers(topic, shop));
        assert_eq!(by("carts/update", "test.myshopify.com"), Some(IgnoredBy::Topic));
        assert_eq!(by("products/update", "test.myshopify.com"), Some(IgnoredBy::Shop));
        let check = |topic: &str, shop: &str| by(topic, shop).is_some();
        assert!(check("customers/update", "a.myshopify.com"));
        assert!(!check("products/update", "a.myshopify.com"));
        for kept in ["customers/redact", "customers/data_request", "app/uninstalled", "shop/redact"]
        {
            assert!(!check(kept, "test.myshopify.com"), "{kept}");
        }
        let event = [("shopify-hmac-sha256", "s"), ("shopify-topic", "Page")];
        let mut page = HeaderMap::new();
        for (name, value) in event.into_iter().chain([("shopify-action", "update")]) {
            page.insert(name, value.parse().expect("a header value"));
        }
        assert_eq!(ignored.by(&page), Some(IgnoredBy::Topic));
        std::fs::write(file.path(), "new.myshopify.com\n").expect("write the file");
        ignored.reload();
        assert!(check("products/update", "new.myshopify.com"));
        assert!(!check("products/update", "old.myshopify.com"));
        std::fs::write(file.path(), "new.myshopify.com\nno domain\n").expect("write the file");
        ignored.reload();
        assert!(check("products/update", "new.myshopify.com"));
        assert_eq!(Ignored::default().by(&page), None);
    }

    #[test]
    fn all_mistakes_of_the_file_are_named_at_once() {
        let file = file("good.myshopify.com\nhttps://a.example/\n\nshop\n");
        let problem = read_shops(file.path()).expect_err("two lines are wrong");
        assert!(problem.ends_with("in line 2 (\"https://a.example/\"), 4 (\"shop\")"), "{problem}");
        let missing = read_shops(Path::new("/nowhere/shops")).expect_err("there is none");
        assert!(missing.starts_with("cannot read /nowhere/shops: "), "{missing}");
    }
}
