//! The API: each area has a file with its routes and their handlers. A handler answers with a model as
//! JSON, or with a problem.

pub(super) mod status;
