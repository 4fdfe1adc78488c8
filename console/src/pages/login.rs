//! The login.

use maud::{Markup, html};

use super::frame::PageFrame;

/// The whole page. `next` is the path to which the login leads, and `problem` says why the one before failed. The form has no
/// CSRF field, because there is no session yet: its origin is checked.
pub fn page(next: &str, problem: Option<&str>) -> Markup {
    let frame = PageFrame { title: "Log in", view: None, caller: None, is_refreshed: false };
    frame.around(&html! {
        form.card method="post" action="/login" {
            @if let Some(problem) = problem { p.notice.bad role="alert" { (problem) } }
            input type="hidden" name="next" value=(next);
            div.field {
                label for="login-user" { "Name" }
                input #login-user name="user" required autofocus autocomplete="username" spellcheck="false";
            }
            div.field {
                label for="login-password" { "Password" }
                input #login-password name="password" type="password" required
                    autocomplete="current-password";
            }
            button type="submit" { "Log in" }
        }
        p.quiet { "An operator of this machine adds users: " code { "spillway console user add" } }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::testing::{assert_hygiene, hostile};

    #[test]
    fn the_form_repeats_its_target_escaped() {
        let text = page(&hostile(), Some(&hostile())).into_string();
        assert!(text.contains(r#"name="next""#) && text.contains("role=\"alert\""), "{text}");
        assert_hygiene(&text);
        assert!(!page("/", None).into_string().contains("alert"));
    }
}
