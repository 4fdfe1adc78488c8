//! A problem as a page.

use axum::response::{IntoResponse, Response};
use maud::{Markup, html};

use super::frame::PageFrame;
use crate::problem::ProblemDetails;

/// A problem that a page's handler answers with.
#[derive(Debug)]
pub struct PageProblem(pub ProblemDetails);

impl From<ProblemDetails> for PageProblem {
    fn from(problem: ProblemDetails) -> Self {
        Self(problem)
    }
}

impl IntoResponse for PageProblem {
    fn into_response(self) -> Response {
        (self.0.status(), page(&self.0)).into_response()
    }
}

fn page(problem: &ProblemDetails) -> Markup {
    let frame = PageFrame { title: &problem.title, view: None, caller: None };
    frame.around(&html! {
        p { (problem.detail) }
        p { a href="/" { "Back to the overview" } }
    })
}
