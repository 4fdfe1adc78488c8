//! Opens a connection to one server, for all who need one.

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client};

use crate::error::QueueError;

/// Connects to one server. An error names its socket, or its host and port.
pub(crate) async fn open(
    client: &Client,
    config: &AsyncConnectionConfig,
) -> Result<MultiplexedConnection, QueueError> {
    let opened = client.get_multiplexed_async_connection_with_config(config).await;
    opened.map_err(|error| QueueError::from(error).at(client.get_connection_info().addr()))
}
