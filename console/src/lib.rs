//! The web part of `spillway console`. It knows who may do what, which routes there are, and how pages
//! look. It knows no Redis: pages and answers are functions of [`model`]s, which the operator's command
//! fills (`spillway/src/console`).
//!
//! The path of a request: [`serve`] (accepts, TLS, one HTTP connection) → [`headers`] (security headers of
//! every answer) → [`unread`] (503 until the files are good) → [`route`] (the one table of routes) → [`guard`] (host, [`authenticate`], permission, origin, [`csrf`]) →
//! a handler, which answers with a page of [`pages`], a [`model`] as JSON, or a [`problem`].
//!
//! A caller is known by an API token ([`tokens`]), the session of a [`login`] ([`sessions`]; guesses are bounded in
//! `login_rate`), or the header of a trusted [`proxy`]. [`users`] and their [`password`]s come from a file.

pub mod access;
pub mod assets;
pub mod authenticate;
mod bounded_writes;
pub mod csrf;
mod etag;
pub mod guard;
pub mod headers;
mod idle;
pub mod login;
mod login_rate;
pub mod model;
pub mod openapi;
pub mod origin;
pub mod pages;
pub mod password;
pub mod peer;
mod peer_slots;
pub mod probes;
pub mod problem;
pub mod proxy;
pub mod route;
pub mod serve;
pub mod sessions;
pub mod tls;
pub mod tokens;
pub mod unread;
pub mod users;

pub use access::{Caller, Permission, Role};
pub use guard::ConsoleGate;
pub use problem::ProblemDetails;
pub use route::{ConsoleRoute, RouteTable};
