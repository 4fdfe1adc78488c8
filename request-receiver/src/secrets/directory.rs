//! Client secrets by shop: a directory with a file for each shop.
//!
//! A custom app has a secret per shop. The file has the name of the shop's domain and holds one secret
//! per line, as the file of the app's own secrets does.

use std::collections::HashMap;
use std::fs::{self, DirEntry};
use std::path::Path;

use spillway_process::settings::read_secrets;
use spillway_webhook::shopify::is_shop_domain;
use zeroize::Zeroizing;

/// Secrets of each shop, by its domain in lower case.
pub type SecretsByShop = HashMap<Box<str>, Vec<Zeroizing<String>>>;

/// Mistakes that are named; more are counted.
const NAMED_MAX: usize = 10;

/// Reads a directory of secrets. Names that begin with a dot are skipped, so that a file can be
/// written under such a name and then renamed.
///
/// # Errors
/// A sentence that names each file with a mistake, and no content.
pub fn read_directory(directory: &Path) -> Result<SecretsByShop, String> {
    let cannot = |error| format!("cannot read {}: {error}", directory.display());
    let entries = fs::read_dir(directory).map_err(cannot)?;
    let mut shops = SecretsByShop::new();
    let mut mistakes = Vec::new();
    for entry in entries {
        let entry = entry.map_err(cannot)?;
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        match read_shop(&entry) {
            Ok((shop, secrets)) => {
                if shops.insert(shop, secrets).is_some() {
                    mistakes.push(format!("{} is there twice", entry.path().display()));
                }
            }
            Err(mistake) => mistakes.push(mistake),
        }
    }
    if mistakes.is_empty() {
        return Ok(shops);
    }
    mistakes.sort();
    let more = mistakes.len().saturating_sub(NAMED_MAX);
    mistakes.truncate(NAMED_MAX);
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    Err(format!("{}{more}", mistakes.join("; ")))
}

fn read_shop(entry: &DirEntry) -> Result<(Box<str>, Vec<Zeroizing<String>>), String> {
    let name = entry.file_name();
    let shop = name.to_str().filter(|name| is_shop_domain(name)).ok_or_else(|| {
        let path = entry.path();
        format!("{} is not named like example.myshopify.com", path.display())
    })?;
    Ok((shop.to_ascii_lowercase().into(), read_secrets(&entry.path())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_is_a_shop_and_every_mistake_is_named() {
        let directory = tempfile::tempdir().expect("create a directory");
        let write = |name: &str, content: &str| {
            fs::write(directory.path().join(name), content).expect("write a file");
        };
        write("One.myshopify.com", "first\nsecond\n");
        write("two.myshopify.com", "third");
        write(".three.myshopify.com.new", "");
        let shops = read_directory(directory.path()).expect("the files are right");
        assert_eq!(shops.len(), 2);
        assert_eq!(shops["one.myshopify.com"].len(), 2);
        assert_eq!(*shops["two.myshopify.com"][0], "third");
        write("readme", "x");
        write("empty.myshopify.com", "\n");
        let mistakes = read_directory(directory.path()).expect_err("two files are wrong");
        assert!(mistakes.contains("readme is not named like example.myshopify.com"), "{mistakes}");
        assert!(mistakes.contains("empty.myshopify.com holds no secret"), "{mistakes}");
        for number in 0..20 {
            write(&format!("no-domain-{number}"), "x");
        }
        let mistakes = read_directory(directory.path()).expect_err("22 files are wrong");
        assert!(mistakes.ends_with("; and 12 more"), "{mistakes}");
        let missing = read_directory(Path::new("/nowhere")).expect_err("there is none");
        assert!(missing.starts_with("cannot read /nowhere: "), "{missing}");
    }
}
