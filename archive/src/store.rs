//! The archive's objects in a directory or in an object store.
//!
//! A put that is confirmed is durable: object stores promise it, and files and their directories are synced. A
//! list is enough to find the objects of a time, and one request for the end of an object reads its index.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::TryStreamExt;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{GetOptions, ObjectStore, ObjectStoreExt, PutMode, PutPayload};
use spillway_process::error::chain;
use spillway_webhook::StreamId;

use crate::error::{BadObject, StoreError};
use crate::input::length_u64;
use crate::keys::KeyRing;
use crate::name::{ListedObject, ObjectName, day_of, split_replaced};
use crate::object::{ArchiveObject, OBJECT_BYTES_MAX, ObjectTail};
use crate::writer::SealedObject;
use crate::{buckets, directory};

/// Bytes of the first request for the end of an object. The index of 32 MiB with 35,000 webhooks has 90 KB.
const TAIL_BYTES: u64 = 128 << 10;
/// Retries within one request that reads. It is repeated by its caller, which reports failures.
const READ_RETRIES: usize = 1;
/// Retries within one request that writes or deletes: the caller checks its lease before each attempt.
const WRITE_RETRIES: usize = 0;

const FORMS: &str = "file:///var/lib/spillway-archive, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix";

/// URL of an archive, checked. Nothing is opened yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchiveUrl {
    place: StorePlace,
    text: String,
    /// Directory below a bucket.
    prefix: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum StorePlace {
    Directory(PathBuf),
    Amazon,
    Google,
    Azure,
}

/// An archive.
#[derive(Debug, Clone)]
pub struct ArchiveStore {
    store: Arc<dyn ObjectStore>,
    /// The same store, for requests that change something.
    writer: Arc<dyn ObjectStore>,
    prefix: Path,
    directory: Option<PathBuf>,
}

/// Result of a put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PutOutcome {
    /// The object is stored.
    Written,
    /// There is an object of this name, and nothing was written.
    Exists,
}

impl ArchiveUrl {
    /// Parses the URL of an archive.
    ///
    /// # Errors
    /// A sentence for the operator.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("must be of the form {FORMS}");
        let (scheme, rest) = text.split_once("://").ok_or_else(wrong)?;
        let text = text.to_owned();
        if scheme == "file" {
            let directory = PathBuf::from(rest);
            if !directory.is_absolute() {
                return Err(
                    "a directory must be absolute, such as file:///var/lib/spillway-archive"
                        .to_owned(),
                );
            }
            return Ok(Self {
                place: StorePlace::Directory(directory),
                text,
                prefix: String::new(),
            });
        }
        let place = match scheme {
            "s3" => StorePlace::Amazon,
            "gs" => StorePlace::Google,
            "az" => StorePlace::Azure,
            _ => return Err(wrong()),
        };
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() || bucket.contains('@') || Path::parse(prefix).is_err() {
            return Err(wrong());
        }
        Ok(Self { place, text, prefix: prefix.to_owned() })
    }

    /// Opens the directory or the bucket, with this number of retries within a request.
    fn connect(&self, retries: usize) -> Result<Arc<dyn ObjectStore>, object_store::Error> {
        let store: Arc<dyn ObjectStore> = match &self.place {
            StorePlace::Directory(directory) => {
                let opened = LocalFileSystem::new_with_prefix(directory)?;
                // Directories of days that are empty are removed.
                Arc::new(opened.with_fsync(true).with_automatic_cleanup(true))
            }
            StorePlace::Amazon => Arc::new(buckets::amazon(&self.text, retries)?),
            StorePlace::Google => Arc::new(buckets::google(&self.text, retries)?),
            StorePlace::Azure => Arc::new(buckets::azure(&self.text, retries)?),
        };
        Ok(store)
    }
}

impl std::fmt::Display for ArchiveUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl ArchiveStore {
    /// Opens an archive. Access to object stores is taken from the environment: AWS_*, GOOGLE_* and AZURE_*.
    ///
    /// # Errors
    /// [`StoreError::Unusable`] if the directory does not exist or the environment does not suit.
    pub fn open(url: &ArchiveUrl) -> Result<Self, StoreError> {
        // Install a provider here, so that TLS does not depend on the other crates in the build.
        rustls::crypto::ring::default_provider().install_default().ok();
        let unusable = |error: object_store::Error| match StoreError::from(error) {
            StoreError::Unavailable(error) | StoreError::Missing(error) => {
                StoreError::Unusable(chain(&error))
            }
            other => other,
        };
        let directory = match &url.place {
            StorePlace::Directory(directory) => Some(directory.clone()),
            StorePlace::Amazon | StorePlace::Google | StorePlace::Azure => None,
        };
        Ok(Self {
            store: url.connect(READ_RETRIES).map_err(unusable)?,
            writer: url.connect(WRITE_RETRIES).map_err(unusable)?,
            prefix: Path::parse(&url.prefix).map_err(|error| unusable(error.into()))?,
            directory,
        })
    }

    /// Puts an object, durably. With `is_new`, an object that exists is left as it is, where the store can tell: it
    /// may not be durable yet, see [`make_durable`](Self::make_durable).
    ///
    /// # Errors
    /// [`StoreError`]. The object may be stored all the same.
    pub async fn put(&self, object: &SealedObject, is_new: bool) -> Result<PutOutcome, StoreError> {
        self.ensure_there().await?;
        let path = self.path(&object.name.to_string());
        let payload = PutPayload::from_iter(object.parts.iter().cloned());
        if is_new {
            let created =
                self.writer.put_opts(&path, payload.clone(), PutMode::Create.into()).await;
            match created {
                Ok(_) => return Ok(PutOutcome::Written),
                Err(object_store::Error::AlreadyExists { .. }) => return Ok(PutOutcome::Exists),
                // A name tells the packs: whatever is there holds the same ones.
                Err(
                    object_store::Error::NotImplemented { .. }
                    | object_store::Error::NotSupported { .. },
                ) => {}
                Err(error) => return Err(error.into()),
            }
        }
        match self.writer.put_opts(&path, payload, PutMode::Overwrite.into()).await {
            Ok(_) => Ok(PutOutcome::Written),
            // Some stores say so where they forbid to write over an object.
            Err(
                error @ (object_store::Error::AlreadyExists { .. }
                | object_store::Error::Precondition { .. }),
            ) => Err(StoreError::Denied(error)),
            Err(error) => Err(error.into()),
        }
    }

    /// True for a directory, false for a bucket.
    pub fn is_directory(&self) -> bool {
        self.directory.is_some()
    }

    /// True for an error of one file of a directory that is there, such as that of a damaged disk: the file exists, and
    /// the system may read it.
    pub async fn is_file_error(&self, error: &StoreError) -> bool {
        let is_of_file = self.is_directory() && matches!(error, StoreError::Unavailable(_));
        is_of_file && self.ensure_there().await.is_ok()
    }

    /// Makes an object durable that was found: in a directory, its bytes are written into a new file, which takes
    /// its place. A sync of the old file would prove nothing. If one failed in a process before, the next one
    /// succeeds although bytes are lost, and a read gives them from memory. What an object store lists is durable.
    ///
    /// # Errors
    /// [`StoreError`]. [`StoreError::Missing`] if it was deleted meanwhile: it stays deleted. Otherwise, the object is
    /// there all the same.
    pub async fn make_durable(
        &self,
        name: &ObjectName,
        object: &ArchiveObject,
    ) -> Result<(), StoreError> {
        let Some(root) = &self.directory else { return Ok(()) };
        directory::ensure_there(root).await?;
        directory::write_again(root, name, object.bytes()).await
    }

    /// Cells that have objects, sorted.
    ///
    /// # Errors
    /// [`StoreError`]
    pub async fn cells(&self) -> Result<Vec<u32>, StoreError> {
        let names = self.directories(&self.prefix).await?;
        let cell = |name: &String| {
            u32::from_str_radix(name, 16)
                .ok()
                .filter(|cell| ObjectName::cell_directory(*cell) == *name)
        };
        Ok(names.iter().filter_map(cell).collect())
    }

    /// Days of a cell that have objects, sorted.
    ///
    /// # Errors
    /// [`StoreError`]
    pub async fn days(&self, cell: u32) -> Result<Vec<String>, StoreError> {
        self.directories(&self.path(&ObjectName::cell_directory(cell))).await
    }

    /// Objects of one day of a cell, sorted. Other files are left out, and damaged objects whose packs were written again
    /// under the next name.
    ///
    /// # Errors
    /// [`StoreError`]
    pub async fn objects(&self, cell: u32, day: &str) -> Result<Vec<ListedObject>, StoreError> {
        Ok(split_replaced(self.all_objects(cell, day).await?).0)
    }

    /// Damaged objects of one day of a cell whose packs were written again under the next name.
    ///
    /// # Errors
    /// [`StoreError`]
    pub async fn replaced(&self, cell: u32, day: &str) -> Result<Vec<ObjectName>, StoreError> {
        Ok(split_replaced(self.all_objects(cell, day).await?).1)
    }

    async fn all_objects(&self, cell: u32, day: &str) -> Result<Vec<ListedObject>, StoreError> {
        self.ensure_there().await?;
        let directory = self.path(&format!("{}/{day}", ObjectName::cell_directory(cell)));
        let listed: Vec<_> = self.store.list(Some(&directory)).try_collect().await?;
        let object = |meta: &object_store::ObjectMeta| {
            let name = self.relative(&meta.location)?.parse().ok()?;
            let written_ms = u64::try_from(meta.last_modified.timestamp_millis()).unwrap_or(0);
            Some(ListedObject { name, bytes: meta.size, written_ms })
        };
        let mut objects: Vec<_> = listed.iter().filter_map(object).collect();
        objects.sort_unstable();
        Ok(objects)
    }

    /// Objects of a cell with an entry at `from` or later, sorted.
    ///
    /// # Errors
    /// [`StoreError`]
    pub async fn objects_from(
        &self,
        cell: u32,
        from: StreamId,
    ) -> Result<Vec<ListedObject>, StoreError> {
        let first = day_of(from.ms);
        let mut objects = Vec::new();
        for day in self.days(cell).await?.iter().filter(|day| **day >= first) {
            let of_day = self.objects(cell, day).await?;
            objects.extend(of_day.into_iter().filter(|object| object.name.last >= from));
        }
        Ok(objects)
    }

    /// Returns the object of a cell with the newest entry, among those that end before `until`.
    ///
    /// # Errors
    /// [`StoreError`]
    pub async fn newest_before(
        &self,
        cell: u32,
        until: StreamId,
    ) -> Result<Option<ListedObject>, StoreError> {
        let last = day_of(until.ms);
        for day in self.days(cell).await?.iter().rev().filter(|day| **day <= last) {
            let of_day = self.objects(cell, day).await?;
            let older = of_day.into_iter().filter(|object| object.name.last < until);
            if let Some(newest) = older.max_by_key(|object| object.name.last) {
                return Ok(Some(newest));
            }
        }
        Ok(None)
    }

    /// Reads the end of an object: its index. Usually that is one request.
    ///
    /// # Errors
    /// [`StoreError`]
    pub async fn tail(
        &self,
        object: &ListedObject,
        keys: &KeyRing,
    ) -> Result<ObjectTail, StoreError> {
        let bad = |error| StoreError::of_object(&object.name, error);
        ensure_size(&object.name, object.bytes)?;
        let mut end = self.end(object, TAIL_BYTES).await?;
        let needed = length_u64(ObjectTail::needed(&end).map_err(bad)?);
        if needed > object.bytes {
            return Err(bad(BadObject::NotAnObject));
        }
        if needed > length_u64(end.len()) {
            end = self.end(object, needed).await?;
        }
        let tail = ObjectTail::decode(&end, keys).map_err(bad)?;
        if tail.object_bytes() != object.bytes {
            return Err(bad(BadObject::Malformed("length of the object")));
        }
        Ok(tail)
    }

    /// Reads a whole object, and checks it.
    ///
    /// # Errors
    /// [`StoreError`]
    pub async fn object(
        &self,
        name: &ObjectName,
        keys: &KeyRing,
    ) -> Result<ArchiveObject, StoreError> {
        let found = self.store.get(&self.path(&name.to_string())).await?;
        ensure_size(name, found.meta.size)?;
        let bytes = found.bytes().await?;
        let keys = keys.clone();
        // Checksums of 256 MiB take a second, in which nothing else would happen.
        let opening = tokio::task::spawn_blocking(move || ArchiveObject::open(bytes, &keys));
        let opened = opening.await.map_err(|source| object_store::Error::JoinError { source })?;
        opened.map_err(|error| StoreError::of_object(name, error))
    }

    /// Reads one pack of an object.
    ///
    /// # Errors
    /// [`StoreError`]
    pub async fn pack(
        &self,
        name: &ObjectName,
        tail: &ObjectTail,
        number: usize,
    ) -> Result<Bytes, StoreError> {
        let bad = |error| StoreError::of_object(name, error);
        let frame = tail.frame(number).ok_or_else(|| bad(BadObject::Malformed("no such pack")))?;
        let frame = self.store.get_range(&self.path(&name.to_string()), frame).await?;
        tail.open_frame(number, &frame).map_err(bad)
    }

    /// Deletes an object, and before it the damaged ones in whose place it was written, which would count again
    /// without it. One that is gone is no error.
    ///
    /// # Errors
    /// [`StoreError`]
    pub async fn delete(&self, name: &ObjectName) -> Result<(), StoreError> {
        for generation in 0..=name.generation {
            self.delete_one(&ObjectName { generation, ..*name }).await?;
        }
        Ok(())
    }

    async fn delete_one(&self, name: &ObjectName) -> Result<(), StoreError> {
        if let Some(root) = &self.directory {
            directory::remove_staged_beside(root, name).await?;
        }
        match self.writer.delete(&self.path(&name.to_string())).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes files that a killed process left half-written in the days from `from` on. Object stores keep no such
    /// parts.
    pub async fn remove_staged(&self, cell: u32, from: StreamId) {
        if let Some(root) = &self.directory {
            let cell = root.join(ObjectName::cell_directory(cell));
            directory::remove_staged(cell, day_of(from.ms)).await;
        }
    }

    /// Puts a file that is no object, durably, in place of the one of this name.
    pub(crate) async fn replace(&self, name: &str, bytes: Vec<u8>) -> Result<(), StoreError> {
        self.ensure_there().await?;
        let payload = PutPayload::from(bytes);
        self.writer.put_opts(&self.path(name), payload, PutMode::Overwrite.into()).await?;
        Ok(())
    }

    /// Reads a file that is no object.
    pub(crate) async fn file(&self, name: &str) -> Result<Bytes, StoreError> {
        self.ensure_there().await?;
        Ok(self.store.get(&self.path(name)).await?.bytes().await?)
    }

    async fn ensure_there(&self) -> Result<(), StoreError> {
        match &self.directory {
            Some(root) => directory::ensure_there(root).await,
            None => Ok(()),
        }
    }

    async fn end(&self, object: &ListedObject, bytes: u64) -> Result<Bytes, StoreError> {
        if object.bytes == 0 {
            return Ok(Bytes::new());
        }
        // Azure knows no range from the end. The length is known from the list.
        let range = object.bytes.saturating_sub(bytes)..object.bytes;
        let options = GetOptions::new().with_range(Some(range));
        let path = self.path(&object.name.to_string());
        Ok(self.store.get_opts(&path, options).await?.bytes().await?)
    }

    async fn directories(&self, directory: &Path) -> Result<Vec<String>, StoreError> {
        self.ensure_there().await?;
        let listed = self.store.list_with_delimiter(Some(directory)).await?;
        let names = listed.common_prefixes.iter().filter_map(Path::filename);
        let mut names: Vec<String> = names.map(str::to_owned).collect();
        names.sort_unstable();
        Ok(names)
    }

    fn path(&self, name: &str) -> Path {
        let mut path = self.prefix.clone();
        path.extend(name.split('/'));
        path
    }

    fn relative<'a>(&self, path: &'a Path) -> Option<&'a str> {
        let path: &'a str = path.as_ref();
        let prefix: &str = self.prefix.as_ref();
        let rest = path.strip_prefix(prefix)?;
        Some(rest.strip_prefix('/').unwrap_or(rest))
    }
}

fn ensure_size(name: &ObjectName, bytes: u64) -> Result<(), StoreError> {
    const LARGE: BadObject =
        BadObject::Malformed("it has more than 256 MiB, so no archiver wrote it");
    if bytes > OBJECT_BYTES_MAX { Err(StoreError::of_object(name, LARGE)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_checked_before_anything_is_opened() {
        for good in
            ["file:///a", "s3://bucket", "s3://bucket/a/b", "gs://bucket/a", "az://container/"]
        {
            assert_eq!(ArchiveUrl::parse(good).map(|url| url.to_string()), Ok(good.to_owned()));
        }
        for bad in [
            "",
            "/a",
            "file://a",
            "s3://",
            "s3:///a",
            "http://host/a",
            "s3://me:key@bucket",
            "s3://b/a//c",
        ] {
            assert!(ArchiveUrl::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_directory_that_does_not_exist_is_not_made() {
        let url = ArchiveUrl::parse("file:///nonexistent/archive").expect("a URL");
        let opened = ArchiveStore::open(&url).map(|_| ());
        assert_eq!(opened.expect_err("it is missing").kind(), "unusable");
    }
}
