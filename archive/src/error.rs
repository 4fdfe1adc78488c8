//! Errors of the archive, one variant for each reaction of the caller.

use crate::name::ObjectName;

/// Reason why bytes are not an object of the archive, or cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadObject {
    /// Another file, or an object without its end.
    #[error("not an object of an archive, or cut off")]
    NotAnObject,
    /// Written by a newer version.
    #[error("version {0} of the format is unknown")]
    Unknown(u8),
    /// A checksum does not match.
    #[error("checksum mismatch: {0}")]
    Checksum(&'static str),
    /// Parts that contradict each other although the checksums match.
    #[error("malformed: {0}")]
    Malformed(&'static str),
    /// Encrypted with a key that is not known here.
    #[error("it is encrypted with the key {0:?}, which ARCHIVE_KEY_FILE does not hold")]
    NoKey(String),
    /// The key of this id is another one, or the object was changed by somebody who has no key.
    #[error("it does not decrypt: {0}")]
    Undecryptable(&'static str),
}

/// Reason why the archive did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// No answer, or an error that may go away by itself. Ask again.
    #[error("the archive does not answer")]
    Unavailable(#[source] object_store::Error),
    /// Credentials or permissions are missing. A person has to fix it; ask again later.
    #[error("the archive denies access")]
    Denied(#[source] object_store::Error),
    /// There is no such object.
    #[error("the archive has no such object")]
    Missing(#[source] object_store::Error),
    /// The object cannot be read.
    #[error("object {0}")]
    Bad(Box<ObjectName>, #[source] BadObject),
    /// The settings cannot be used as they are.
    #[error("{0}")]
    Unusable(String),
}

impl StoreError {
    /// Label in metrics, from a closed set: see [`FAILURE_KINDS`].
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Unavailable(_) => "unavailable",
            Self::Denied(_) => "denied",
            Self::Missing(_) => "missing",
            Self::Bad(..) => "corrupt",
            Self::Unusable(_) => "unusable",
        }
    }
}

/// Every [`StoreError::kind`].
pub const FAILURE_KINDS: [&str; 5] = ["unavailable", "denied", "missing", "corrupt", "unusable"];

impl From<object_store::Error> for StoreError {
    fn from(error: object_store::Error) -> Self {
        match error {
            object_store::Error::PermissionDenied { .. }
            | object_store::Error::Unauthenticated { .. } => Self::Denied(error),
            object_store::Error::NotFound { .. } => Self::Missing(error),
            _ => Self::Unavailable(error),
        }
    }
}
