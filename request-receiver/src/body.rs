//! Reads a whole body. Its length, its time and its permit are limits.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, header};
use http_body::Body;
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout_at};

use crate::admit::Permit;
use crate::reply::Refusal;

/// Limits on reading the body of a refused request, so that the refusal comes within 100 ms.
const DISCARD_BYTES_MAX: usize = 64 << 10;
const DISCARD_TIME: Duration = Duration::from_millis(50);

/// Reads `body`, up to `bytes_max` bytes, within `time` from now.
///
/// # Errors
/// [`Refusal::TooLarge`]; [`Refusal::Slow`]; [`Refusal::Overloaded`] if the permit can't grow with
/// the body; [`Refusal::BrokenBody`] if the body breaks off or isn't framed as announced.
pub async fn read<B>(
    body: &mut B,
    bytes_max: usize,
    time: Duration,
    permit: &mut Permit,
) -> Result<Bytes, Refusal>
where
    B: Body<Data = Bytes> + Unpin,
{
    let mut reading = pin!(collect(body, bytes_max, permit));
    // Mostly the body is here already, and needs neither a timer nor the time.
    if let Poll::Ready(read) = poll_fn(|cx| Poll::Ready(reading.as_mut().poll(cx))).await {
        return read;
    }
    timeout_at(Instant::now() + time, reading).await.unwrap_or(Err(Refusal::Slow))
}

/// Reads and drops the body of a refused request, if it is small and arrives quickly. Then the
/// connection can be used again. Under overload, a new connection for each refusal would add to the
/// load. Returns whether the body was read to its end.
pub async fn discard<B>(request: &mut Request<B>) -> bool
where
    B: Body<Data = Bytes> + Unpin,
{
    // A sender with an `Expect` header sends the body only because reading begins.
    if request.headers().contains_key(header::EXPECT) {
        return request.body().is_end_stream();
    }
    let body = request.body_mut();
    let read = async {
        let mut left = DISCARD_BYTES_MAX;
        while let Some(part) = next(body).await? {
            left = left.checked_sub(part.len()).ok_or(Refusal::TooLarge)?;
        }
        Ok::<(), Refusal>(())
    };
    timeout_at(Instant::now() + DISCARD_TIME, read).await.is_ok_and(|read| read.is_ok())
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
    let mut whole = Vec::from(first);
    let mut chunk = Some(second);
    while let Some(part) = chunk {
        let length = whole.len() + part.len();
        if length > bytes_max {
            return Err(Refusal::TooLarge);
        }
        permit.grow_to(length)?;
        if length > whole.capacity() {
            let capacity = capacity_for(length, body.size_hint().upper()).min(bytes_max);
            whole.reserve_exact(capacity - whole.len());
        }
        whole.extend_from_slice(&part);
        chunk = next(body).await?;
    }
    Ok(Bytes::from(whole))
}

/// Capacity for a body of which `arrived_bytes` have come and `left_bytes` are announced. The
/// announced bytes may never come, so the capacity is at most twice what has come. Doubling keeps
/// the cost of copying linear.
fn capacity_for(arrived_bytes: usize, left_bytes: Option<u64>) -> usize {
    let left_bytes = left_bytes.and_then(|left| usize::try_from(left).ok()).unwrap_or(usize::MAX);
    arrived_bytes.saturating_add(left_bytes.min(arrived_bytes))
}

/// Returns the next piece of data. Drops trailers: the signature does not cover them.
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

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::{StreamExt, stream};
    use http_body::Frame;
    use http_body_util::StreamBody;

    use super::*;
    use crate::admit::Admission;

    async fn read_chunks(chunks: &[&'static [u8]], bytes_max: usize) -> Result<Bytes, Refusal> {
        let frames = chunks.iter().map(|chunk| Ok(Frame::data(Bytes::from_static(chunk))));
        let mut body =
            StreamBody::new(stream::iter(frames.collect::<Vec<Result<_, Infallible>>>()));
        let mut permit = Admission::new(1 << 20).admit(0, 0).unwrap();
        read(&mut body, bytes_max, Duration::from_secs(1), &mut permit).await
    }

    #[tokio::test]
    async fn chunks_become_one_body_in_their_order() {
        let whole = Bytes::from_static(b"abcdefghi");
        assert_eq!(read_chunks(&[], 9).await, Ok(Bytes::new()));
        assert_eq!(read_chunks(&[b"abcdefghi"], 9).await, Ok(whole.clone()));
        assert_eq!(read_chunks(&[b"a", b"bc", b"d", b"efgh", b"i"], 9).await, Ok(whole));
        assert_eq!(read_chunks(&[b"", b"", b"a"], 9).await, Ok(Bytes::from_static(b"a")));
        assert_eq!(read_chunks(&[b"abcd", b"efgh", b"ij"], 9).await, Err(Refusal::TooLarge));
        assert_eq!(read_chunks(&[b"abcdefghij"], 9).await, Err(Refusal::TooLarge));
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_never_ends_is_refused_when_its_time_is_over() {
        let first = stream::iter([Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"a")))]);
        let mut body = StreamBody::new(first.chain(stream::pending()));
        let mut permit = Admission::new(1 << 20).admit(0, 0).unwrap();
        let began = Instant::now();
        let time = Duration::from_secs(7);
        assert_eq!(read(&mut body, 9, time, &mut permit).await, Err(Refusal::Slow));
        assert!((time..time * 2).contains(&began.elapsed()));
    }

    #[test]
    fn an_announced_body_takes_no_more_than_twice_what_has_come() {
        assert_eq!(capacity_for(100, Some(16 << 20)), 200);
        assert_eq!(capacity_for(100, Some(50)), 150);
        assert_eq!(capacity_for(100, None), 200);
    }
}
