//! The demo backend of a local cell, told to fail from the page.

use maud::{Markup, html};

use super::frame::ConsoleView;
use crate::access::Caller;
use crate::csrf;

/// Modes of the demo backend: code, name, and what there is to see.
pub const MODES: [(&str, &str, &str); 6] = [
    ("ok", "Takes everything", "Waiting goes down to 0."),
    ("500", "Fails", "Answers 500: webhooks are retried, and the circuit breaker opens."),
    ("429", "Has too much", "Answers 429 with Retry-After: delivery pauses, then slows down."),
    ("slow", "Is slow", "Answers after two seconds: the limit of concurrency finds its place."),
    ("422", "Refuses", "Answers 422: webhooks become dead letters, to be replayed later."),
    (
        "one_shop",
        "Fails for one shop",
        "Webhooks of that shop wait in lanes, and the others go on.",
    ),
];

/// The whole page. `mode` is the code of the present mode; `told` is true right after a change.
pub fn page(caller: &Caller, mode: &str, told: bool) -> Markup {
    ConsoleView::Demo.page(
        caller,
        &html! {
            @if told { p.notice role="status" { "It is done." } }
            p { "This cell delivers to a backend that does what you set here. Make it fail, and watch the overview." }
            form.card method="post" action="/demo" {
                (csrf::field(caller))
                fieldset {
                    legend { "The backend" }
                    @for (code, name, effect) in MODES {
                        div.check {
                            input type="radio" name="mode" value=(code) checked[code == mode]
                                id={ "mode-" (code) } aria-describedby={ "effect-" (code) };
                            label for={ "mode-" (code) } { (name) }
                            span.quiet id={ "effect-" (code) } { (effect) }
                        }
                    }
                }
                button type="submit" { "Set" }
            }
            form.filter method="post" action="/demo" {
                (csrf::field(caller))
                div.field {
                    label for="demo-send" { "Webhooks to send, up to 1,000" }
                    input #demo-send name="send" type="number" min="1" max="1000" value="20" required;
                }
                button type="submit" { "Send samples" }
            }
            ol {
                li { "Let the backend refuse, until the " a href="/" { "overview" } " shows dead letters." }
                li { "Let it take everything again." }
                li { "Open the " a href="/dead" { "dead letters" } ", count them for a replay, and confirm." }
            }
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Role;
    use crate::pages::testing::{assert_hygiene, caller, hostile};

    #[test]
    fn the_present_mode_is_checked() {
        for (code, _, _) in MODES {
            let text = page(&caller(Role::Operator), code, true).into_string();
            assert_eq!(text.matches(" checked").count(), 1, "{text}");
            assert_hygiene(&text);
        }
        assert_hygiene(&page(&caller(Role::Operator), &hostile(), false).into_string());
    }
}
