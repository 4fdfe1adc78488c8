//! Reads a body whole: bounded in bytes, in time, and by its permit.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::Body;
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout_at};

use crate::admit::Permit;
use crate::reply::Refusal;

/// Reads `body`, up to `bytes_max`, within `time` from now.
///
/// # Errors
/// [`Refusal::TooLarge`], [`Refusal::Slow`], [`Refusal::Overloaded`] when the permit can't grow
/// with it, [`Refusal::BrokenBody`] when it breaks off or isn't framed as announced.
pub async fn read<B>(
    mut body: B,
    bytes_max: usize,
    time: Duration,
    permit: &mut Permit,
) -> Result<Bytes, Refusal>
where
    B: Body<Data = Bytes> + Unpin,
{
    // The timer only comes into being if the body is not already here, which it mostly is.
    timeout_at(Instant::now() + time, collect(&mut body, bytes_max, permit))
        .await
        .unwrap_or(Err(Refusal::Slow))
}

async fn collect<B>(body: &mut B, bytes_max: usize, permit: &mut Permit) -> Result<Bytes, Refusal>
where
    B: Body<Data = Bytes> + Unpin,
{
    let Some(first) = next(body).await? else { return Ok(Bytes::new()) };
    if first.len() > bytes_max {
        return Err(Refusal::TooLarge);
    }
    permit.grow_to(first.len())?;
    let Some(second) = next(body).await? else { return Ok(first) };
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    let expected = first.len().saturating_add(second.len()).saturating_add(announced);
    let mut whole = BytesMut::with_capacity(expected.min(bytes_max));
    whole.extend_from_slice(&first);
    let mut chunk = Some(second);
    while let Some(part) = chunk {
        let length = whole.len() + part.len();
        if length > bytes_max {
            return Err(Refusal::TooLarge);
        }
        permit.grow_to(length)?;
        whole.extend_from_slice(&part);
        chunk = next(body).await?;
    }
    Ok(whole.freeze())
}

/// The next piece of data; trailers are not part of the signed body and are dropped.
async fn next<B>(body: &mut B) -> Result<Option<Bytes>, Refusal>
where
    B: Body<Data = Bytes> + Unpin,
{
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.map_err(|_| Refusal::BrokenBody)?.into_data() {
            return Ok(Some(data));
        }
    }
    Ok(None)
}
