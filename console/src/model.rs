//! Data that pages show and that the API answers with, and what a request may ask for. The API promises
//! these shapes: a member is added, never renamed.
//!
//! A list ends with `next`: the cursor with which the next request goes on, or none at its end. A page of a
//! list may be short, or even empty, and still have a cursor: it ends at what was looked at.

pub mod audit;
pub mod change;
pub mod dead;
pub mod doctor;
pub mod gaps;
pub mod history;
pub mod lanes;
pub mod overview;
pub mod top;
pub mod webhook;
