//! The web part of `spillway console`. It knows who may do what, which routes there are, and how pages
//! look. It knows no Redis: pages and answers are functions of [`model`]s, which the operator's command
//! fills (`spillway/src/console`).
//!
//! The path of a request: [`serve`] (accepts, TLS, one HTTP connection) → [`headers`] (security headers of
//! every answer) → [`route`] (the one table of routes) → [`guard`] (host, [`authenticate`], permission, origin) →
//! a handler, which answers with a page of [`pages`], a [`model`] as JSON, or a [`problem`].

pub mod access;
pub mod assets;
pub mod authenticate;
mod etag;
pub mod guard;
pub mod headers;
pub mod model;
pub mod openapi;
pub mod origin;
pub mod pages;
pub mod problem;
pub mod route;
pub mod serve;

pub use access::{Caller, Permission, Role};
pub use guard::ConsoleGate;
pub use problem::ProblemDetails;
pub use route::{ConsoleRoute, RouteTable};
