//! URL at which secrets are looked up, and the shops for which one request is.

use std::sync::Arc;
use std::time::Duration;

/// Part of the URL that stands for the shop.
const SHOP: &str = "{shop}";
/// Part of the URL that stands for several shops, comma separated.
const SHOPS: &str = "{shops}";
/// Shops that one request looks up at most, and bytes of their domains. Most servers allow a URL 8 KiB.
const SHOPS_AT_ONCE: usize = 64;
const NAMES_BYTES_MAX: usize = 4 << 10;
/// Early lookups begin at multiples of this, if one request may look several shops up.
const TOGETHER_SEVERAL: Duration = Duration::from_millis(125);
/// The same with one shop in a request. Each request takes time here and at the endpoint, so many at once
/// would delay webhooks.
const TOGETHER_ONE: Duration = Duration::from_millis(5);

/// Checks the URL.
///
/// # Errors
/// A sentence that says what is wrong.
pub(super) fn check(url: &str) -> Result<(), String> {
    const FORM: &str = "must be an http or https URL with {shop} or {shops} in it, such as https://secrets.internal/{shop}";
    let example = filled(url, "example.myshopify.com");
    let parsed: http::Uri = example.parse().map_err(|error| format!("{error}; it {FORM}"))?;
    let is_http = matches!(parsed.scheme_str(), Some("http" | "https"));
    let path = parsed.path_and_query().map(http::uri::PathAndQuery::as_str);
    // In the host's place, a stranger would choose whom the token is sent to.
    let is_in_path = path.is_some_and(|path| path.contains("example.myshopify.com"));
    let authority = parsed.authority().map_or("", http::uri::Authority::as_str);
    if authority.contains('@') {
        return Err("must not hold a password: put a token into SHOP_SECRETS_TOKEN_FILE".to_owned());
    }
    if let Some(authority) = parsed.authority() {
        spillway_process::settings::check_port(authority)?;
    }
    let is_one = !example.contains(SHOP) && !example.contains(SHOPS);
    if is_http && !authority.is_empty() && is_in_path && example != url && is_one {
        Ok(())
    } else {
        Err(FORM.to_owned())
    }
}

/// True if a request may look several shops up.
pub(super) fn takes_several(url: &str) -> bool {
    url.contains(SHOPS)
}

/// Time at whose multiples early lookups begin.
pub(super) fn together(url: &str) -> Duration {
    if takes_several(url) { TOGETHER_SEVERAL } else { TOGETHER_ONE }
}

/// URL with shops in their place, comma separated.
pub(super) fn filled(url: &str, shops: &str) -> String {
    url.replacen(if url.contains(SHOPS) { SHOPS } else { SHOP }, shops, 1)
}

/// Divides shops among requests.
pub(super) fn grouped(shops: Vec<Arc<str>>) -> Vec<Vec<Arc<str>>> {
    let mut groups: Vec<Vec<_>> = Vec::new();
    let mut bytes = 0;
    for shop in shops {
        let name_bytes = shop.len() + 1;
        bytes += name_bytes;
        match groups.last_mut() {
            Some(group) if group.len() < SHOPS_AT_ONCE && bytes <= NAMES_BYTES_MAX => {
                group.push(shop);
            }
            _ => {
                bytes = name_bytes;
                groups.push(vec![shop]);
            }
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_the_shop_in_its_path_or_query() {
        for right in [
            "https://secrets.internal/{shop}",
            "http://127.0.0.1:8080/secrets?shop={shop}&app=1",
            "https://a/shops/{shop}/secrets",
            "https://a/secrets?of={shops}",
        ] {
            assert_eq!(check(right), Ok(()), "{right}");
        }
        for wrong in [
            "https://secrets.internal/",
            "https://{shop}/secrets",
            "https://{shop}.internal/{shop}",
            "ftp://a/{shop}",
            "/secrets/{shop}",
            "https://user:hush@a/{shop}",
            "https://a/{shop} ",
            "https://a:99999/{shop}",
            "https://a:0/{shop}",
            "https://{shops}/secrets",
            "https://a/{shop}?of={shops}",
            "https://a/{shops}?of={shops}",
        ] {
            let problem = check(wrong).expect_err(wrong);
            assert!(!problem.contains("hush"), "{problem}");
        }
    }

    #[test]
    fn lookups_begin_together_where_they_share_a_request() {
        assert_eq!(together("https://a/{shops}"), Duration::from_millis(125));
        assert_eq!(together("https://a/{shop}"), Duration::from_millis(5));
    }

    #[test]
    fn a_request_is_for_so_many_shops_that_its_url_is_not_too_long() {
        let sizes = |shops: Vec<Arc<str>>| grouped(shops).iter().map(Vec::len).collect::<Vec<_>>();
        let short = (0..130).map(|number| format!("{number}.example").into()).collect();
        assert_eq!(sizes(short), [64, 64, 2]);
        let long = "a".repeat(253);
        let names = (0..40).map(|number| format!("{number:02}{}", &long[2..]).into()).collect();
        assert_eq!(sizes(names), [16, 16, 8]);
        assert!(sizes(Vec::new()).is_empty());
    }
}
