//! Errors of the archive, one variant for each reaction of the caller.

use std::error::Error as _;
use std::io;

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
    /// The key of this id does not unwrap the object's: it is another one.
    #[error("its key does not unwrap: ARCHIVE_KEY_FILE holds another key under the id {0:?}")]
    WrongKey(String),
    /// The object was changed by somebody who has no key.
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
    /// There is no such object, or no such bucket.
    #[error("the archive has no such object, or there is no such bucket")]
    Missing(#[source] object_store::Error),
    /// The object may be intact, but its key is not here. A person has to bring it.
    #[error("object {0}")]
    NoKey(Box<ObjectName>, #[source] BadObject),
    /// The object cannot be read.
    #[error("object {0}")]
    Bad(Box<ObjectName>, #[source] BadObject),
    /// The settings cannot be used as they are.
    #[error("{0}")]
    Unusable(String),
}

impl StoreError {
    /// Error of an object that could not be opened.
    pub(crate) fn of_object(name: &ObjectName, error: BadObject) -> Self {
        let name = Box::new(*name);
        match error {
            BadObject::NoKey(_) | BadObject::WrongKey(_) => Self::NoKey(name, error),
            _ => Self::Bad(name, error),
        }
    }

    /// Label in metrics, from a closed set: see [`FAILURE_KINDS`].
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Unavailable(_) => "unavailable",
            Self::Denied(_) => "denied",
            Self::Missing(_) => "missing",
            Self::NoKey(..) => "no_key",
            Self::Bad(..) => "corrupt",
            Self::Unusable(_) => "unusable",
        }
    }
}

/// Every [`StoreError::kind`].
pub const FAILURE_KINDS: [&str; 6] =
    ["unavailable", "denied", "missing", "no_key", "corrupt", "unusable"];

impl From<object_store::Error> for StoreError {
    fn from(error: object_store::Error) -> Self {
        match error {
            object_store::Error::PermissionDenied { .. }
            | object_store::Error::Unauthenticated { .. } => Self::Denied(error),
            object_store::Error::NotFound { .. } => Self::Missing(error),
            _ if is_refused_by_system(&error) => Self::Denied(error),
            _ => Self::Unavailable(error),
        }
    }
}

/// True if the system did not let us read or write a file.
fn is_refused_by_system(error: &object_store::Error) -> bool {
    let mut cause = error.source();
    while let Some(error) = cause {
        let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
        if matches!(kind, Some(io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem))
        {
            return true;
        }
        cause = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use spillway_webhook::StreamId;

    use super::*;

    #[test]
    fn a_directory_that_may_not_be_written_denies_access() {
        let of = |kind: io::ErrorKind| {
            let source = Box::new(io::Error::from(kind));
            StoreError::from(object_store::Error::Generic { store: "LocalFileSystem", source })
        };
        assert_eq!(of(io::ErrorKind::PermissionDenied).kind(), "denied");
        assert_eq!(of(io::ErrorKind::ReadOnlyFilesystem).kind(), "denied");
        assert_eq!(of(io::ErrorKind::StorageFull).kind(), "unavailable");
    }

    #[test]
    fn an_object_whose_key_is_not_here_is_not_damaged() {
        let id = StreamId { ms: 1, seq: 0 };
        let name = ObjectName { cell: 1, first: id, last: id, webhooks: 1, tag: 0, generation: 0 };
        for key in [BadObject::NoKey("a".to_owned()), BadObject::WrongKey("a".to_owned())] {
            assert_eq!(StoreError::of_object(&name, key).kind(), "no_key");
        }
        let damaged = StoreError::of_object(&name, BadObject::Undecryptable("a pack"));
        assert_eq!(damaged.kind(), "corrupt");
    }
}
