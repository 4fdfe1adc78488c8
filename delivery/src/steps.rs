//! The steps of a webhook, as functions on the state of a leader.
//!
//! In the order of time: `arrive`, and later `dispatch`, which asks `gate`, `turns` (which asks
//! `pick`), `slots`, `choose` and `compare`; after the attempt `ended` → `finish` → `settle` → `settled`. What failed goes from `ended`
//! to `retries`. If its time is spent (`spent`), it goes to `give_up`, or else to `turns` again once
//! it is due (`Core::wake`). When that is, `state/backoff.rs` says; what is first within a lane,
//! `state/ready.rs`; and which lane of a shop, `pick`. In layers, each of which uses those above it:
//!
//! 1. `time`, `finish`, `heads`, `slots`, `barriers`
//! 2. `gate`, `retries`, `spent`, `settled`, `apply_controls`, `compare`
//! 3. `cut`, `read`, `pick`, `moving`, `give_up`
//! 4. `arrive`, `choose`, `ended`, `suspect_turns`, `settle`, `unread`
//! 5. `turns`, `slow`, `expire`, `refill`
//! 6. `dispatch`

pub(crate) mod apply_controls;
pub(crate) mod arrive;
pub(crate) mod barriers;
pub(crate) mod choose;
pub(crate) mod compare;
pub(crate) mod cut;
pub(crate) mod dispatch;
pub(crate) mod ended;
pub(crate) mod expire;
pub(crate) mod finish;
pub(crate) mod gate;
pub(crate) mod give_up;
pub(crate) mod heads;
pub(crate) mod moving;
pub(crate) mod pick;
pub(crate) mod read;
pub(crate) mod refill;
pub(crate) mod retries;
#[cfg(test)]
pub(crate) mod sample;
pub(crate) mod settle;
pub(crate) mod settled;
pub(crate) mod slots;
pub(crate) mod slow;
pub(crate) mod spent;
pub(crate) mod suspect_turns;
pub(crate) mod time;
pub(crate) mod turns;
pub(crate) mod unread;
