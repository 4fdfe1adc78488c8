//! Bounds what is received and not yet stored, in bytes.
//!
//! The permit travels with the webhook to the end of its append; dropping it frees its bytes,
//! panics included.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::reply::Refusal;

/// Beside its body, a webhook holds headers, a channel slot and a waiter.
const OVERHEAD_BYTES: usize = 2048;

/// Hands out bytes.
#[derive(Debug, Clone)]
pub struct Admission {
    bytes: Arc<Semaphore>,
    bytes_max: usize,
}

/// Bytes that one webhook may hold.
#[derive(Debug)]
pub struct Permit {
    held: OwnedSemaphorePermit,
    from: Arc<Semaphore>,
    body_bytes: usize,
}

impl Admission {
    /// Hands out up to `bytes_max` at a time.
    pub fn new(bytes_max: usize) -> Self {
        Self { bytes: Arc::new(Semaphore::new(bytes_max)), bytes_max }
    }

    /// Bytes handed out now.
    pub fn in_flight_bytes(&self) -> usize {
        self.bytes_max - self.bytes.available_permits()
    }

    /// Room for a webhook whose body is announced to have `body_bytes` (0 if unknown).
    ///
    /// # Errors
    /// [`Refusal::Overloaded`] when there is none.
    pub fn admit(&self, body_bytes: usize) -> Result<Permit, Refusal> {
        let held = acquire(&self.bytes, body_bytes + OVERHEAD_BYTES)?;
        Ok(Permit { held, from: self.bytes.clone(), body_bytes })
    }
}

impl Permit {
    /// Makes room for a body that has grown to `body_bytes`.
    ///
    /// # Errors
    /// [`Refusal::Overloaded`] when there is none.
    pub fn grow_to(&mut self, body_bytes: usize) -> Result<(), Refusal> {
        if let Some(more) = body_bytes.checked_sub(self.body_bytes).filter(|more| *more > 0) {
            self.held.merge(acquire(&self.from, more)?);
            self.body_bytes = body_bytes;
        }
        Ok(())
    }
}

fn acquire(bytes: &Arc<Semaphore>, count: usize) -> Result<OwnedSemaphorePermit, Refusal> {
    let count = u32::try_from(count).map_err(|_| Refusal::TooLarge)?;
    bytes.clone().try_acquire_many_owned(count).map_err(|_| Refusal::Overloaded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_when_the_permit_goes() {
        let admission = Admission::new(10_000);
        let mut permit = admission.admit(1000).unwrap();
        assert_eq!(admission.in_flight_bytes(), 3048);
        permit.grow_to(3000).unwrap();
        assert_eq!(admission.in_flight_bytes(), 5048);
        assert!(permit.grow_to(9000).is_err());
        assert!(admission.admit(4000).is_err());
        drop(permit);
        assert_eq!(admission.in_flight_bytes(), 0);
    }
}
