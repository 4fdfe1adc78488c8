//! The steps of a webhook, as functions on the state of a leader.
//!
//! In order: [`arrive`] → [`turns`] and [`pick`] → [`choose`] and [`dispatch`] → [`ended`] →
//! [`finish`] → [`settle`] → [`settled`]. A step calls only steps below it: no two files call each
//! other.

pub(crate) mod apply_controls;
pub(crate) mod arrive;
pub(crate) mod barriers;
pub(crate) mod choose;
pub(crate) mod cut;
pub(crate) mod dispatch;
pub(crate) mod ended;
pub(crate) mod expire;
pub(crate) mod finish;
pub(crate) mod gate;
pub(crate) mod give_up;
pub(crate) mod moving;
pub(crate) mod pick;
pub(crate) mod read;
pub(crate) mod refill;
pub(crate) mod retries;
pub(crate) mod settle;
pub(crate) mod settled;
pub(crate) mod slots;
pub(crate) mod slow;
pub(crate) mod spent;
pub(crate) mod suspect_turns;
pub(crate) mod time;
pub(crate) mod turns;
