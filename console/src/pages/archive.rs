//! The replay from the archive: the form that counts it, or the way to an archive where there is none.

use maud::{Markup, html};

use super::forms::ChangeForm;
use super::frame::ConsoleView;
use super::parts::field;
use crate::access::Caller;
use crate::csrf;

/// The whole page. `form` has the values that are filled in already.
pub fn page(caller: &Caller, has_archive: bool, form: &ChangeForm) -> Markup {
    let main = if has_archive { replay(caller, form) } else { set_up() };
    ConsoleView::Archive.page(caller, &main)
}

/// Form that counts what would be delivered again.
fn replay(caller: &Caller, form: &ChangeForm) -> Markup {
    let is_all = form.all.is_some();
    html! {
        p { "Delivers again what was stored in a range of time, whatever became of it: repair your app first." }
        p {
            "Webhooks of compliance topics and app/uninstalled are left out, unless the topic names them. The range ends where the "
            "consumer, or the archive, ends."
        }
        section aria-labelledby="replay" {
            h2 #replay { "Replay" }
            p { "They are counted first. Nothing is delivered before you have confirmed their number." }
            form.filter method="post" action="/archive/replay" {
                (csrf::field(caller))
                (field("replay", "consumer", "Consumer", form.consumer.as_deref(), "http"))
                (field("replay", "since", "Stored from", form.since.as_deref(), "2026-01-01T14:00:00Z, or 2h"))
                (field("replay", "until", "Stored until", form.until.as_deref(), "now"))
                (field("replay", "shop", "Shop", form.shop.as_deref(), "a.myshopify.com"))
                (field("replay", "topic", "Topic", form.topic.as_deref(), "orders/*"))
                (field("replay", "rate", "Most per second", form.manner.rate.as_deref(), "as fast as they go"))
                div.check {
                    input #replay-all type="checkbox" name="all" value="true" checked[is_all];
                    label for="replay-all" { "All of them, where neither a shop nor a topic is given" }
                }
                button type="submit" { "Count for a replay" }
            }
        }
    }
}

/// Steps to an archive.
fn set_up() -> Markup {
    html! {
        p.notice { "This console knows no archive: ARCHIVE_URL is not set." }
        p {
            "An archive keeps every webhook from its first start on. What it holds can be delivered again, also after your app "
            "has answered 200 and lost it."
        }
        section aria-labelledby="set-up" {
            h2 #set-up { "Set up an archive" }
            ol {
                li {
                    "Set " code { "ARCHIVE_URL" } " for the archiver, to a directory or a bucket, in "
                    code { "/etc/spillway/archiver.env" } ", and start it: "
                    code { "systemctl enable --now spillway-archiver" } "."
                }
                li {
                    "Set the same " code { "ARCHIVE_URL" } ", and " code { "ARCHIVE_KEY_FILE" }
                    " for encrypted objects, in " code { "/etc/spillway/console.env" }
                    ". Let the console read the directory or the bucket."
                }
                li { "Start the console again: " code { "systemctl restart spillway-console" } "." }
            }
            p { "The documentation has the details: archive.md, and console.md under \"Replay from the archive\"." }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Role;
    use crate::pages::testing::{assert_hygiene, caller, hostile};

    #[test]
    fn the_form_counts_first_and_escapes_what_is_filled_in() {
        let form = ChangeForm {
            consumer: Some(hostile()),
            shop: Some(hostile()),
            topic: Some(hostile()),
            since: Some(hostile()),
            ..ChangeForm::default()
        };
        let text = page(&caller(Role::Operator), true, &form).into_string();
        assert_hygiene(&text);
        for name in ["consumer", "since", "until", "shop", "topic", "rate", "all"] {
            assert!(text.contains(&format!("name=\"{name}\"")), "{name}: {text}");
        }
        assert!(text.contains(r#"action="/archive/replay""#), "{text}");
        assert!(!text.contains("name=\"expected\"") && !text.contains("checked"), "{text}");
    }

    #[test]
    fn without_an_archive_the_page_says_how_to_set_one_up() {
        let text = page(&caller(Role::Admin), false, &ChangeForm::default()).into_string();
        assert_hygiene(&text);
        assert!(text.contains("ARCHIVE_URL") && text.contains("spillway-archiver"), "{text}");
        assert!(!text.contains("/archive/replay"), "{text}");
    }
}
