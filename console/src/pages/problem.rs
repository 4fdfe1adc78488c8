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
    let frame = PageFrame { title: &problem.title, view: None, caller: None, is_refreshed: false };
    frame.around(&html! {
        p.notice role="alert" { (problem.detail) }
        p { a href="/" { "Back to the overview" } }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::testing::{assert_hygiene, hostile};

    #[test]
    fn a_problem_is_escaped() {
        let text = page(&ProblemDetails::not_found(hostile())).into_string();
        assert!(text.contains("Not Found") && text.contains("&lt;img"), "{text}");
        assert_hygiene(&text);
    }
}
