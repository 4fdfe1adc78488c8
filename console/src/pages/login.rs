//! The login page.

use maud::{Markup, html};

use super::frame::PageFrame;

/// The page with its form. `next` is the path to go to afterwards; `problem` says why a login failed.
pub fn page(next: &str, problem: Option<&str>) -> Markup {
    let frame = PageFrame { title: "Log in", view: None, caller: None };
    frame.around(&html! {
        @if let Some(problem) = problem {
            p.bad role="alert" { (problem) }
        }
        form method="post" action="/login" {
            input type="hidden" name="next" value=(next);
            p {
                label for="user" { "User" }
                input #user name="user" autocomplete="username" required;
            }
            p {
                label for="password" { "Password" }
                input #password name="password" type="password" autocomplete="current-password" required;
            }
            button { "Log in" }
        }
    })
}
