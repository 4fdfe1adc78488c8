//! The delivery core. It decides which webhook is sent next and what is settled. Pure: it contains
//! no clock, socket or channel.
//!
//! [`Core::on`] takes events and returns effects. The worker around it carries them out. All state of
//! a leader is in `state`; `steps` are the functions that change it.

mod audit;
mod classified;
mod config;
mod core;
mod event;
mod pack_key;
mod report;
mod settlement;
mod shares;
mod state;
mod status;
mod steps;
mod turn;

pub use crate::classified::{Class, Classified, Content, StateRole, UpdateState};
pub use crate::config::{AtOnce, Config, SettlementBounds, Suppression, Tuning};
pub use crate::event::{
    AttemptEnd, ChunkFound, ChunkRead, Dispatch, Effect, Event, LaneLoaded, Loaded, Now, PackRead,
    ReadAgain, ReplayRead, Scope, Verdict,
};
pub use crate::pack_key::PackKey;
pub use crate::settlement::{
    ChunkWrite, ControlsChange, GivenUp, LaneChange, LaneRowChange, MainChange, Outcome,
    PendingSettlement, ReplayChange, SettledRecord,
};
pub use crate::shares::{ShopLoad, ShopLoads};
pub use crate::state::Core;
pub use crate::state::attempts::AttemptId;
pub use crate::state::backoff::Backoff;
pub use crate::state::controls::{Controls, Drops};
pub use crate::state::refusals::RefusalBreaker;
pub use crate::state::seen::DedupWindow;
pub use crate::state::shop::ShopBounds;
pub use crate::status::{BackendCounts, BlockedLane, Counts, Status, UndeliveredCounts};
pub use crate::turn::Blocked;
