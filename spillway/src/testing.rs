//! Values for unit tests of several modules: a redaction as a consumer notes it, and an archive in a directory.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use spillway_archive::keys::KeyRing;
use spillway_archive::store::ArchiveUrl;
use spillway_archive::{ArchiveStore, ObjectName, ObjectWriter};
use spillway_queue::redactions::NotedRedaction;
use spillway_webhook::pack::{Packer, Records};
use spillway_webhook::{StreamId, Webhook, WebhookId};
use tempfile::TempDir;

/// Shop of the webhooks.
pub(crate) const SHOP: &str = "a.example";

/// Pack of one webhook of [`SHOP`] whose body names a customer, as that of a redaction does.
pub(crate) fn customer_pack(topic: &'static str, customer: u64) -> Bytes {
    let mut headers = HeaderMap::new();
    headers.insert("x-shopify-topic", HeaderValue::from_static(topic));
    headers.insert("x-shopify-shop-domain", HeaderValue::from_static(SHOP));
    let target = http::uri::PathAndQuery::from_static("/");
    let body = format!(
        r#"{{"shop_domain":"{SHOP}","orders_to_redact":[],"customer":{{"id":{customer}}}}}"#
    );
    let mut records = Records::default();
    records.push(&Webhook { received_at_ms: 7, target, headers, body: body.into() });
    Packer::new().pack(&records).to_vec().into()
}

/// Note of a webhook of this topic about the customer 12, at index 3 of the entry `5-2`. It can be read only if that is
/// the topic of a redaction.
pub(crate) fn noted_redaction(topic: &'static str) -> NotedRedaction {
    let entry = StreamId { ms: 5, seq: 2 };
    NotedRedaction {
        webhook: WebhookId { cell: 1, entry, index: 3 },
        noted_ms: 9,
        consumer: "http".to_owned(),
        pack: customer_pack(topic, 12),
    }
}

/// An archive without encryption, in a directory that is removed with this value.
pub(crate) struct TestArchive {
    directory: TempDir,
    /// Keys of the archive: none.
    pub keys: Arc<KeyRing>,
}

impl TestArchive {
    /// An empty archive.
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        Self { directory, keys: Arc::new(KeyRing::default()) }
    }

    /// The directory.
    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Opens the archive.
    pub(crate) fn open(&self) -> ArchiveStore {
        let url = format!("file://{}", self.path().display());
        let url = ArchiveUrl::parse(&url).expect("a URL");
        ArchiveStore::open(&url).expect("an archive")
    }

    /// Stores an object with these packs. The archive's entry before them is `after`.
    pub(crate) async fn put(
        &self,
        cell: u32,
        after: StreamId,
        packs: Vec<(StreamId, Bytes)>,
    ) -> ObjectName {
        let mut writer = ObjectWriter::new(cell, after, &self.keys).expect("randomness");
        for (entry, pack) in packs {
            writer.add(entry, pack);
        }
        let sealed = writer.finish().expect("packs");
        self.open().put(&sealed, true).await.expect("stored");
        sealed.name
    }
}
