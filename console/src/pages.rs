//! Pages as functions of data. `html!` escapes every text, and the pages hold no inline script or style.
//!
//! A view has a file of its own with `page` (the whole page) and, if it is live, `part` (what an event
//! replaces). A part is the same for all who may see it, because it is rendered once for all of them.

pub mod archive;
pub mod audit;
mod charts;
pub mod dead;
pub mod demo;
pub mod doctor;
pub mod extract;
mod figures;
pub mod forms;
pub mod frame;
pub mod gaps;
pub mod job;
pub mod jobs;
pub mod lanes;
pub mod links;
pub mod login;
pub mod overview;
mod parts;
pub mod problem;
pub mod shops;
pub mod webhook;
pub mod webhooks;

#[cfg(test)]
mod testing;
