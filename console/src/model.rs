//! Data that pages show and that the API answers with. The API promises these shapes: a member is
//! added, never renamed.

pub mod overview;
