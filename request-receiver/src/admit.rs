//! Limit on the bytes that are received and not yet stored.
//!
//! A webhook holds what has arrived of it and at most 8 KiB ahead, not the length that its sender
//! announced. An announcement costs a stranger nothing. The permit travels with the webhook, and then with its
//! batch, until the append ends. Dropping it frees its bytes, also after a panic.

use std::sync::Arc;

use prometheus::IntGauge;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use tokio::sync::Semaphore;

use crate::reply::Refusal;
use crate::settings::OVERHEAD_BYTES;

/// Part of an announced body that is reserved before it arrives. The connection's read buffer is as
/// large. Most webhooks then reserve memory only once.
const AHEAD_BYTES: usize = 8192;

/// Limit on the bytes in flight. Hands out permits.
#[derive(Debug, Clone)]
pub struct Admission {
    bytes: Arc<Semaphore>,
    bytes_max: usize,
}

/// Bytes that are reserved for one webhook, or for one batch after [`Permit::merge`].
#[derive(Debug)]
pub struct Permit {
    from: Arc<Semaphore>,
    held_bytes: usize,
    /// Part of `held_bytes` that is for the body.
    body_bytes: usize,
}

impl Admission {
    /// Hands out up to `bytes_max` at a time.
    pub fn new(bytes_max: usize) -> Self {
        Self { bytes: Arc::new(Semaphore::new(bytes_max)), bytes_max }
    }

    /// Bytes that are reserved now.
    pub fn in_flight_bytes(&self) -> usize {
        self.bytes_max - self.bytes.available_permits()
    }

    /// Reserves memory for a webhook with a head of `head_bytes`. The body as announced (0 if
    /// unknown) must fit, too. Its memory is reserved as it arrives, by [`Permit::grow_to`].
    ///
    /// # Errors
    /// [`Refusal::Overloaded`] if too little is left.
    pub fn admit(&self, head_bytes: usize, announced_bytes: usize) -> Result<Permit, Refusal> {
        let fixed_bytes = OVERHEAD_BYTES + head_bytes;
        if fixed_bytes.saturating_add(announced_bytes) > self.bytes.available_permits() {
            return Err(Refusal::Overloaded);
        }
        let body_bytes = announced_bytes.min(AHEAD_BYTES);
        let held_bytes = fixed_bytes + body_bytes;
        take(&self.bytes, held_bytes)?;
        Ok(Permit { from: self.bytes.clone(), held_bytes, body_bytes })
    }
}

impl Permit {
    /// Reserves memory for a body that has grown to `body_bytes`.
    ///
    /// # Errors
    /// [`Refusal::Overloaded`] if too little is left.
    pub fn grow_to(&mut self, body_bytes: usize) -> Result<(), Refusal> {
        if let Some(more) = body_bytes.checked_sub(self.body_bytes).filter(|more| *more > 0) {
            take(&self.from, more)?;
            self.held_bytes += more;
            self.body_bytes = body_bytes;
        }
        Ok(())
    }

    /// Takes over the bytes of `other`, so that one permit covers many webhooks.
    pub fn merge(&mut self, mut other: Self) {
        self.held_bytes += std::mem::take(&mut other.held_bytes);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.held_bytes > 0 {
            self.from.add_permits(self.held_bytes);
        }
    }
}

/// Metric of the bytes in flight. It is read when the metrics are scraped, so the hot path writes
/// no gauge.
#[derive(Clone)]
pub struct InFlightMetric {
    admission: Admission,
    gauge: IntGauge,
}

impl InFlightMetric {
    /// Metric of the bytes that `admission` has handed out.
    pub fn new(admission: Admission) -> Self {
        let help = "Bytes received and not yet stored.";
        let gauge = IntGauge::new("spillway_in_flight_bytes", help).expect("BUG: a valid name");
        Self { admission, gauge }
    }
}

impl Collector for InFlightMetric {
    fn desc(&self) -> Vec<&Desc> {
        self.gauge.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.gauge.set(i64::try_from(self.admission.in_flight_bytes()).unwrap_or(i64::MAX));
        self.gauge.collect()
    }
}

fn take(bytes: &Semaphore, count: usize) -> Result<(), Refusal> {
    let count = u32::try_from(count).map_err(|_| Refusal::TooLarge)?;
    bytes.try_acquire_many(count).map_err(|_| Refusal::Overloaded)?.forget();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_when_the_permit_goes() {
        let admission = Admission::new(20_000);
        let mut permit = admission.admit(500, 1000).unwrap();
        assert_eq!(admission.in_flight_bytes(), OVERHEAD_BYTES + 500 + 1000);
        permit.grow_to(3000).unwrap();
        assert_eq!(admission.in_flight_bytes(), OVERHEAD_BYTES + 500 + 3000);
        assert_eq!(permit.grow_to(18_000), Err(Refusal::Overloaded));
        assert!(admission.admit(0, 13_000).is_err());
        assert!(admission.admit(13_000, 0).is_err());
        drop(permit);
        assert_eq!(admission.in_flight_bytes(), 0);
    }

    #[test]
    fn an_announcement_takes_no_room_from_others() {
        let admission = Admission::new(256 << 20);
        let announced: Vec<_> = (0..100).map(|_| admission.admit(100, 16 << 20).unwrap()).collect();
        assert!(admission.in_flight_bytes() < 2 << 20);
        // A webhook that could not fit even now is refused at once.
        assert!(admission.admit(0, 256 << 20).is_err());
        drop(announced);
    }
}
