//! The frame of every page: head, navigation, main part.

use maud::{DOCTYPE, Markup, html};

use crate::access::{Caller, Permission};
use crate::assets::url;

/// htmx runs no text as code, adds no inline style, and asks no other host.
const HTMX: &str = r#"{"allowEval":false,"includeIndicatorStyles":false,"selfRequestsOnly":true,"historyCacheSize":0}"#;

/// A view, as the navigation names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConsoleView {
    /// State of the cell at a glance.
    Overview,
}

/// A page without its frame.
pub struct PageFrame<'a> {
    /// Title of the page, also its heading.
    pub title: &'a str,
    /// View of the page; `None` for a page that is no view.
    pub view: Option<ConsoleView>,
    /// Caller for whom it is made; `None` if nobody is known.
    pub caller: Option<&'a Caller>,
}

impl ConsoleView {
    /// All views, in the order of the navigation.
    pub const ALL: [Self; 1] = [Self::Overview];

    /// Name in the navigation.
    fn label(self) -> &'static str {
        match self {
            Self::Overview => "Overview",
        }
    }

    /// Path of the view.
    pub fn path(self) -> &'static str {
        match self {
            Self::Overview => "/",
        }
    }

    /// Permission that the view needs, the same as its route.
    pub fn permission(self) -> Permission {
        match self {
            Self::Overview => Permission::Look,
        }
    }
}

impl PageFrame<'_> {
    /// Puts `main` into the frame.
    pub fn around(&self, main: &Markup) -> Markup {
        html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="htmx-config" content=(HTMX);
                    title { (self.title) " – Spillway" }
                    link rel="stylesheet" href=(url("uPlot.min.css"));
                    link rel="stylesheet" href=(url("console.css"));
                    script defer src=(url("htmx.min.js")) {}
                    script defer src=(url("uPlot.iife.min.js")) {}
                    script defer src=(url("console.js")) {}
                }
                body {
                    a.skip href="#main" { "Skip to the content" }
                    header {
                        strong { "Spillway" }
                        (self.navigation())
                        @if let Some(caller) = self.caller {
                            span { (caller.name) " (" (caller.role) ")" }
                        }
                    }
                    main #main {
                        h1 { (self.title) }
                        (main)
                    }
                }
            }
        }
    }

    /// Links to the views that the caller may see.
    fn navigation(&self) -> Markup {
        let may =
            |view: &ConsoleView| self.caller.is_some_and(|caller| caller.may(view.permission()));
        html! {
            nav aria-label="Views" {
                ul {
                    @for view in ConsoleView::ALL.into_iter().filter(may) {
                        li {
                            a href=(view.path())
                                aria-current=[(self.view == Some(view)).then_some("page")] {
                                (view.label())
                            }
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_holds_nothing_inline_and_escapes_its_title() {
        let frame = PageFrame { title: "<script>x</script>", view: None, caller: None };
        let text = frame.around(&html! { p { "main" } }).into_string();
        assert!(text.contains("&lt;script&gt;x") && !text.contains("<script>"), "{text}");
        assert!(!text.contains(" style=") && !text.contains(" on") && !text.contains("://"));
    }
}
