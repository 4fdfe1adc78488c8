//! Access to buckets, from the environment: AWS_*, GOOGLE_* and AZURE_*.

use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::{BackoffConfig, ClientConfigKey, RetryConfig};

/// Time for one request, unless AWS_TIMEOUT or the like sets another. 32 MiB take as long at 1 Mbit/s.
const REQUEST_TIMEOUT: &str = "300s";

fn retry(times: usize) -> RetryConfig {
    let backoff = BackoffConfig { max_backoff: Duration::from_secs(1), ..BackoffConfig::default() };
    RetryConfig { backoff, max_retries: times, ..RetryConfig::default() }
}

fn is_set(name: &str) -> bool {
    std::env::var_os(name).is_some()
}

/// Opens a bucket of Amazon S3, or of a server that speaks its protocol.
pub(crate) fn amazon(
    url: &str,
    retries: usize,
) -> Result<object_store::aws::AmazonS3, object_store::Error> {
    let mut builder = AmazonS3Builder::from_env().with_url(url).with_retry(retry(retries));
    if !is_set("AWS_TIMEOUT") {
        let key = AmazonS3ConfigKey::Client(ClientConfigKey::Timeout);
        builder = builder.with_config(key, REQUEST_TIMEOUT);
    }
    builder.build()
}

/// Opens a bucket of Google Cloud Storage.
pub(crate) fn google(
    url: &str,
    retries: usize,
) -> Result<object_store::gcp::GoogleCloudStorage, object_store::Error> {
    let mut builder =
        GoogleCloudStorageBuilder::from_env().with_url(url).with_retry(retry(retries));
    if !is_set("GOOGLE_TIMEOUT") {
        let key = GoogleConfigKey::Client(ClientConfigKey::Timeout);
        builder = builder.with_config(key, REQUEST_TIMEOUT);
    }
    builder.build()
}

/// Opens a bucket of Azure.
pub(crate) fn azure(
    url: &str,
    retries: usize,
) -> Result<object_store::azure::MicrosoftAzure, object_store::Error> {
    let mut builder = MicrosoftAzureBuilder::from_env().with_url(url).with_retry(retry(retries));
    if !is_set("AZURE_TIMEOUT") {
        let key = AzureConfigKey::Client(ClientConfigKey::Timeout);
        builder = builder.with_config(key, REQUEST_TIMEOUT);
    }
    builder.build()
}
