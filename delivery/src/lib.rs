//! The delivery core: which webhook is sent next, and what is settled. Pure: no clock, socket or
//! channel inside.
//!
//! A webhook's way: `arrive` → `lane` and `index` → `turns` → `dispatch` (one gate) → `ended` →
//! `settle` and `settled`. Beside it: `refill` (the part of a lane that is not indexed), `moving` (the front
//! of the main stream into lanes), `reading` (bytes at hand), `controls` (an operator's).
//!
//! [`Core::on`] takes an event and returns effects; the worker around it carries them out.

mod arrive;
mod attempts;
mod audit;
mod backend;
mod backoff;
mod breaker;
mod by_hash;
mod cache;
mod chunk_reads;
mod config;
mod controls;
mod core;
mod cut;
mod dispatch;
mod ended;
mod event;
mod expiry;
mod fairness;
mod give_up;
mod index;
mod lane;
mod lane_clock;
mod lanes;
mod ledger;
mod main_stream;
mod moving;
mod pauses;
mod proven;
mod queue;
mod reading;
mod ready;
mod refill;
mod refusals;
mod resource;
mod retry;
mod seen;
mod settle;
mod settled;
mod settlement;
mod shares;
mod shop;
mod slow;
mod sorted;
mod status;
mod suspects;
mod time;
mod turns;

pub use crate::attempts::AttemptId;
pub use crate::backoff::Backoff;
pub use crate::config::{Config, Tuning};
pub use crate::controls::{Controls, Drops};
pub use crate::core::Core;
pub use crate::dispatch::Blocked;
pub use crate::event::{
    AttemptEnd, ChunkFound, ChunkRead, Dispatch, Effect, Event, LaneLoaded, Loaded, Now, PackRead,
    ReadAgain, ReplayRead, Scope, Verdict,
};
pub use crate::reading::PackKey;
pub use crate::refusals::RefusalBreaker;
pub use crate::seen::Seen;
pub use crate::settlement::{
    ChunkWrite, ControlsChange, DeadLetter, LaneChange, LaneRowChange, MainChange, Outcome,
    ReplayChange, SettledRecord, Settlement,
};
pub use crate::shares::{Shares, ShopShare};
pub use crate::shop::ShopBounds;
pub use crate::sorted::{Class, Content, Sorted};
pub use crate::status::{BackendCounts, BlockedLane, Counts, Status};
