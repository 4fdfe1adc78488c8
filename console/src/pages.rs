//! Pages as functions of data. `html!` escapes every text, and the pages hold no inline script or style.
//!
//! A view has a file of its own with `page` (the whole page) and, if it is live, `part` (what an event
//! replaces). A part is the same for all who may see it, because it is rendered once for all of them.

mod figures;
pub mod frame;
pub mod login;
pub mod overview;
pub mod problem;
