//! The delivery core. It decides which webhook is sent next and what is settled. Pure: it contains
//! no clock, socket or channel.
//!
//! The path of a webhook: `arrive` → `lane` and `index` → `turns` → `dispatch` (one gate) → `ended`
//! → `settle` and `settled`. The other parts are `refill` (reads the part of a lane that is not
//! indexed), `moving` (moves the front of the main stream into lanes), `reading` (keeps bytes in
//! memory) and `controls` (operator controls).
//!
//! [`Core::on`] takes events and returns effects. The worker around it carries them out.

mod apply_controls;
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
mod expire;
mod expiry;
mod fairness;
mod give_up;
mod index;
mod lane;
mod lane_clock;
mod lanes;
mod ledger;
mod main_stream;
mod mover;
mod moving;
mod pack_key;
mod pauses;
mod proven;
mod queue;
mod read;
mod reading;
mod ready;
mod refill;
mod refusals;
mod report;
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
mod suspect_turns;
mod suspects;
mod time;
mod turn;
mod turns;

pub use crate::attempts::AttemptId;
pub use crate::backoff::Backoff;
pub use crate::config::{Config, Tuning};
pub use crate::controls::{Controls, Drops};
pub use crate::core::Core;
pub use crate::event::{
    AttemptEnd, ChunkFound, ChunkRead, Dispatch, Effect, Event, LaneLoaded, Loaded, Now, PackRead,
    ReadAgain, ReplayRead, Scope, Verdict,
};
pub use crate::pack_key::PackKey;
pub use crate::refusals::RefusalBreaker;
pub use crate::seen::DedupWindow;
pub use crate::settlement::{
    ChunkWrite, ControlsChange, GivenUp, LaneChange, LaneRowChange, MainChange, Outcome,
    PendingSettlement, ReplayChange, SettledRecord,
};
pub use crate::shares::{ShopLoad, ShopLoads};
pub use crate::shop::ShopBounds;
pub use crate::sorted::{Class, Content, Sorted};
pub use crate::status::{BackendCounts, BlockedLane, Counts, Status};
pub use crate::turn::Blocked;
