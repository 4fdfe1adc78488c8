//! Encryption: a random key for each object, wrapped with a key of ARCHIVE_KEY_FILE.
//!
//! AES-256-GCM. The key of an object encrypts its packs and its index, each with a nonce of its own: the number
//! of the pack, and the greatest number for the index. So packs cannot change places within an object, and an
//! object that is written again has another key. The wrapped key lies in the object's header.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};
use spillway_process::reload::FromFiles;
use spillway_process::settings::read_secrets;
use zeroize::Zeroizing;

use crate::error::BadObject;

/// Longest id of a key. It is part of each header.
pub(crate) const KEY_ID_BYTES_MAX: usize = 64;
/// Bytes that encryption adds to a pack or an index.
pub(crate) const SEAL_BYTES: usize = 16;
/// Number of the nonce for the index. No object has so many packs.
pub(crate) const INDEX_NUMBER: u64 = u64::MAX;

const KEY_BYTES: usize = 32;

/// Key of an object, encrypted with a key of ARCHIVE_KEY_FILE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrappedKey {
    /// Id of the key that it is encrypted with.
    pub id: String,
    /// Random nonce.
    pub nonce: [u8; 12],
    /// The encrypted key with its tag.
    pub wrapped: [u8; KEY_BYTES + SEAL_BYTES],
}

/// Keys of ARCHIVE_KEY_FILE: the first one is for new objects, all are for reading.
#[derive(Clone, Default)]
pub struct KeyRing {
    keys: Vec<MasterKey>,
}

#[derive(Clone)]
struct MasterKey {
    id: String,
    key: LessSafeKey,
}

/// Key of one object.
pub(crate) struct ObjectKey(LessSafeKey);

/// ARCHIVE_KEY_FILE, which is read again when it changes.
pub struct ArchiveKeys {
    file: Option<PathBuf>,
    ring: ArcSwap<KeyRing>,
}

impl KeyRing {
    /// Reads keys, a line each: an id and 32 bytes in base64.
    ///
    /// # Errors
    /// A sentence that names the file, not its content.
    pub fn read(file: &Path) -> Result<Self, String> {
        let lines = read_secrets(file)?;
        let mut keys: Vec<MasterKey> = Vec::new();
        for (at, line) in lines.iter().enumerate() {
            let wrong = |problem: &str| format!("{}, key {}: {problem}", file.display(), at + 1);
            let key = MasterKey::parse(line).map_err(wrong)?;
            if keys.iter().any(|other| other.id == key.id) {
                return Err(wrong("its id is that of another key"));
            }
            keys.push(key);
        }
        Ok(Self { keys })
    }

    /// True if new objects are not encrypted.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Makes a key for a new object. `None` if objects are not encrypted.
    ///
    /// # Errors
    /// If the system gives no random bytes.
    pub(crate) fn new_object_key(&self) -> Result<Option<(WrappedKey, ObjectKey)>, NoRandomness> {
        let Some(master) = self.keys.first() else { return Ok(None) };
        let random = SystemRandom::new();
        let mut plain = Zeroizing::new([0u8; KEY_BYTES]);
        let mut nonce = [0u8; 12];
        random.fill(&mut plain[..]).map_err(|_| NoRandomness)?;
        random.fill(&mut nonce).map_err(|_| NoRandomness)?;
        let key = ObjectKey(aes(&plain[..]).expect("BUG: the key has 32 bytes"));
        let mut wrapped = Vec::with_capacity(KEY_BYTES + SEAL_BYTES);
        wrapped.extend_from_slice(&plain[..]);
        let nonce_used = Nonce::assume_unique_for_key(nonce);
        let sealed = master.key.seal_in_place_append_tag(
            nonce_used,
            Aad::from(master.id.as_bytes()),
            &mut wrapped,
        );
        sealed.expect("BUG: 32 bytes can be encrypted");
        let wrapped: [u8; KEY_BYTES + SEAL_BYTES] =
            wrapped.try_into().expect("BUG: a key and its tag have 48 bytes");
        Ok(Some((WrappedKey { id: master.id.clone(), nonce, wrapped }, key)))
    }

    /// Unwraps the key of an object.
    ///
    /// # Errors
    /// [`BadObject::NoKey`] if the key is not known here, [`BadObject::WrongKey`] if it does not fit.
    pub(crate) fn unwrap_key(&self, wrapped: &WrappedKey) -> Result<ObjectKey, BadObject> {
        let master = self.keys.iter().find(|key| key.id == wrapped.id);
        let master = master.ok_or_else(|| BadObject::NoKey(wrapped.id.clone()))?;
        let mut bytes = Zeroizing::new(wrapped.wrapped);
        let nonce = Nonce::assume_unique_for_key(wrapped.nonce);
        let aad = Aad::from(master.id.as_bytes());
        // The header has a checksum: it is the key that does not fit, and the object is not damaged.
        let wrong = || BadObject::WrongKey(wrapped.id.clone());
        let plain = match master.key.open_in_place(nonce, aad, &mut bytes[..]) {
            Ok(plain) => plain,
            Err(_) => return Err(wrong()),
        };
        aes(plain).map(ObjectKey).ok_or_else(wrong)
    }
}

/// The system gives no random bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the system gives no random bytes for a key")]
pub struct NoRandomness;

impl MasterKey {
    fn parse(line: &str) -> Result<Self, &'static str> {
        const FORM: &str =
            "must be an id and 32 bytes in base64, such as: 2026-01 $(openssl rand -base64 32)";
        let (id, text) = line.split_once(char::is_whitespace).ok_or(FORM)?;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if id.len() > KEY_ID_BYTES_MAX || !id.chars().all(is_plain) {
            return Err("an id has up to 64 letters, digits, '.', '_' or '-'");
        }
        let bytes = Zeroizing::new(STANDARD.decode(text.trim()).map_err(|_| FORM)?);
        Ok(Self { id: id.to_owned(), key: aes(&bytes).ok_or(FORM)? })
    }
}

/// Key of AES-256-GCM; `None` if there are not 32 bytes.
fn aes(bytes: &[u8]) -> Option<LessSafeKey> {
    UnboundKey::new(&AES_256_GCM, bytes).ok().map(LessSafeKey::new)
}

fn nonce_of(number: u64) -> Nonce {
    let mut nonce = [0u8; 12];
    nonce[4..].copy_from_slice(&number.to_le_bytes());
    Nonce::assume_unique_for_key(nonce)
}

impl ObjectKey {
    /// Encrypts the part with this number. The bytes `beside` it, which are not encrypted, are protected too.
    pub(crate) fn seal(&self, number: u64, beside: &[u8], plain: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(plain.len() + SEAL_BYTES);
        bytes.extend_from_slice(plain);
        self.0
            .seal_in_place_append_tag(nonce_of(number), Aad::from(beside), &mut bytes)
            .expect("BUG: AES-GCM takes 64 GiB, and a pack is far smaller");
        bytes
    }

    /// Decrypts the part with this number. `None` if any byte is another one than was written.
    pub(crate) fn open(&self, number: u64, beside: &[u8], stored: &[u8]) -> Option<Vec<u8>> {
        let mut bytes = stored.to_vec();
        let plain =
            self.0.open_in_place(nonce_of(number), Aad::from(beside), &mut bytes).ok()?.len();
        bytes.truncate(plain);
        Some(bytes)
    }
}

impl ArchiveKeys {
    /// No keys: objects are not encrypted.
    pub fn none() -> Self {
        Self { file: None, ring: ArcSwap::default() }
    }

    /// Reads the keys.
    ///
    /// # Errors
    /// A sentence that names the file, not its content.
    pub fn read(file: PathBuf) -> Result<Self, String> {
        let ring = ArcSwap::from_pointee(KeyRing::read(&file)?);
        Ok(Self { file: Some(file), ring })
    }

    /// Keys as they were read last.
    pub fn ring(&self) -> Arc<KeyRing> {
        self.ring.load_full()
    }
}

impl FromFiles for ArchiveKeys {
    fn files(&self) -> Vec<PathBuf> {
        self.file.iter().cloned().collect()
    }

    fn reload(&self) -> bool {
        let Some(file) = &self.file else { return true };
        match KeyRing::read(file) {
            Ok(ring) => {
                tracing::info!(count = ring.keys.len(), "keys of the archive read again");
                self.ring.store(Arc::new(ring));
                true
            }
            Err(problem) => {
                tracing::error!(
                    %problem,
                    "ARCHIVE_KEY_FILE could not be read again; the old keys stay in force"
                );
                false
            }
        }
    }
}

// Written by hand: keys are secrets.
impl fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids: Vec<_> = self.keys.iter().map(|key| &key.id).collect();
        f.debug_struct("KeyRing").field("ids", &ids).finish_non_exhaustive()
    }
}

impl fmt::Debug for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectKey").finish_non_exhaustive()
    }
}

impl fmt::Debug for ArchiveKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArchiveKeys").field("file", &self.file).finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const OLD: &str = "2025 AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    pub(crate) const NEW: &str = "2026 ICEiIyQlJicoKSorLC0uLzAxMjM0NTY3ODk6Ozw9Pj8=";

    /// Keys of a file with these lines.
    pub(crate) fn ring(lines: &[&str]) -> KeyRing {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), lines.join("\n")).expect("write");
        KeyRing::read(file.path()).expect("keys")
    }

    #[test]
    fn an_object_is_read_with_the_key_that_it_was_written_with() {
        let (wrapped, key) = ring(&[OLD]).new_object_key().expect("randomness").expect("a key");
        assert_eq!(wrapped.id, "2025");
        let stored = key.seal(3, b"beside", b"a pack");
        assert_ne!(key.seal(4, b"beside", b"a pack"), stored);
        let later = ring(&[NEW, OLD]).unwrap_key(&wrapped).expect("it is there");
        assert_eq!(later.open(3, b"beside", &stored).as_deref(), Some(&b"a pack"[..]));
        assert_eq!(later.open(4, b"beside", &stored), None, "another place");
        assert_eq!(later.open(3, b"others", &stored), None);
        let without = ring(&[NEW]).unwrap_key(&wrapped).map(|_| ());
        assert_eq!(without, Err(BadObject::NoKey("2025".to_owned())));
        let same_id = NEW.replace("2026", "2025");
        let other = ring(&[&*same_id]).unwrap_key(&wrapped).map(|_| ());
        assert_eq!(other, Err(BadObject::WrongKey("2025".to_owned())));
    }

    #[test]
    fn without_keys_nothing_is_encrypted() {
        assert!(KeyRing::default().is_empty());
        assert!(KeyRing::default().new_object_key().expect("randomness").is_none());
    }

    #[test]
    fn mistakes_in_the_file_are_named_and_keys_are_not() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        for (text, expected) in [
            (format!("{OLD}\n2026"), "key 2: must be an id"),
            (format!("{OLD}\n2026 aHVzaA=="), "key 2: must be an id"),
            (format!("a/b {}", &OLD[5..]), "key 1: an id has"),
            (format!("{OLD}\n{OLD}"), "key 2: its id is that of another key"),
            (String::new(), "holds no secret"),
        ] {
            std::fs::write(file.path(), text).expect("write");
            let problem = KeyRing::read(file.path()).map(|_| ()).expect_err("a mistake");
            assert!(problem.contains(expected), "{problem}");
            assert!(!problem.contains("AAECAw") && !problem.contains("aHVzaA"), "{problem}");
        }
    }

    #[test]
    fn a_changed_file_is_read_and_one_with_a_mistake_changes_nothing() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), OLD).expect("write");
        let keys = ArchiveKeys::read(file.path().to_owned()).expect("keys");
        std::fs::write(file.path(), format!("{NEW}\n{OLD}")).expect("write");
        assert!(keys.reload());
        let first = |keys: &ArchiveKeys| keys.ring().keys[0].id.clone();
        assert_eq!(first(&keys), "2026");
        std::fs::write(file.path(), "nonsense").expect("write");
        assert!(!keys.reload());
        assert_eq!(first(&keys), "2026");
        assert!(!format!("{keys:?} {:?}", keys.ring()).contains("ICEi"));
    }
}
