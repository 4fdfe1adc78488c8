//! The pages: each view has a file with its routes and their handlers. A handler finds out, and the page is a
//! function of what it found (`spillway-console`).

pub(super) mod overview;
