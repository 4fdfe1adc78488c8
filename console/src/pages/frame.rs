//! The frame of every page: head, navigation, main part.

use std::sync::atomic::{AtomicBool, Ordering};

use maud::{DOCTYPE, Markup, html};

use crate::access::{Caller, Credential, Permission};
use crate::assets::url;
use crate::csrf;

/// htmx runs no text as code, adds no inline style, and asks no other host.
const HTMX: &str = r#"{"allowEval":false,"includeIndicatorStyles":false,"selfRequestsOnly":true,"historyCacheSize":0}"#;

/// True in a cell whose demo backend can be told to fail.
static HAS_DEMO: AtomicBool = AtomicBool::new(false);

/// A view, as the navigation names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConsoleView {
    /// State of the cell at a glance.
    Overview,
    /// Lanes and pauses.
    Lanes,
    /// Webhooks that wait.
    Webhooks,
    /// Dead letters.
    DeadLetters,
    /// Replay from the archive.
    Archive,
    /// Shops, topics and resources with the most waiting webhooks.
    Shops,
    /// Times in which webhooks may be missing.
    Gaps,
    /// The audit: who changed what.
    Audit,
    /// Checks of the cell.
    Doctor,
    /// The demo backend. Only where there is one.
    Demo,
}

/// A page without its frame.
pub struct PageFrame<'a> {
    /// Title of the page, also its heading.
    pub title: &'a str,
    /// View of the page; `None` for a page that is no view.
    pub view: Option<ConsoleView>,
    /// Caller for whom it is made; `None` if nobody is known.
    pub caller: Option<&'a Caller>,
    /// True for a page that is loaded again and again where there are no scripts.
    pub is_refreshed: bool,
}

impl ConsoleView {
    /// All views, in the order of the navigation.
    pub const ALL: [Self; 10] = [
        Self::Overview,
        Self::Lanes,
        Self::Webhooks,
        Self::DeadLetters,
        Self::Archive,
        Self::Shops,
        Self::Gaps,
        Self::Audit,
        Self::Doctor,
        Self::Demo,
    ];

    /// Name in the navigation, and heading of the page.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Overview => "Overview",
            Self::Lanes => "Lanes",
            Self::Webhooks => "Webhooks",
            Self::DeadLetters => "Dead letters",
            Self::Archive => "Archive",
            Self::Shops => "Shops",
            Self::Gaps => "Gaps",
            Self::Audit => "Audit",
            Self::Doctor => "Doctor",
            Self::Demo => "Demo",
        }
    }

    /// Path of the view.
    pub fn path(self) -> &'static str {
        match self {
            Self::Overview => "/",
            Self::Lanes => "/lanes",
            Self::Webhooks => "/webhooks",
            Self::DeadLetters => "/dead",
            Self::Archive => "/archive",
            Self::Shops => "/shops",
            Self::Gaps => "/gaps",
            Self::Audit => "/audit",
            Self::Doctor => "/doctor",
            Self::Demo => "/demo",
        }
    }

    /// Permission that the view needs, the same as its route.
    pub fn permission(self) -> Permission {
        match self {
            Self::Overview | Self::Lanes | Self::Shops | Self::Doctor => Permission::Look,
            Self::Webhooks | Self::DeadLetters | Self::Gaps | Self::Audit => Permission::Search,
            Self::Archive | Self::Demo => Permission::Operate,
        }
    }

    /// The page of this view for a caller.
    pub(super) fn page(self, caller: &Caller, main: &Markup) -> Markup {
        self.page_with_title(self.label(), caller, main)
    }

    /// A page that belongs to this view, with a title of its own.
    pub(super) fn page_with_title(self, title: &str, caller: &Caller, main: &Markup) -> Markup {
        let frame =
            PageFrame { title, view: Some(self), caller: Some(caller), is_refreshed: false };
        frame.around(main)
    }
}

/// Shows the demo in the navigation from now on.
pub fn offer_demo() {
    HAS_DEMO.store(true, Ordering::Relaxed);
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
                    meta name="color-scheme" content="light dark";
                    meta name="htmx-config" content=(HTMX);
                    @if self.is_refreshed {
                        noscript { meta http-equiv="refresh" content="2"; }
                    }
                    title { (self.title) " – Spillway" }
                    link rel="stylesheet" href=(url("uPlot.min.css"));
                    link rel="stylesheet" href=(url("console.css"));
                    script defer src=(url("htmx.min.js")) {}
                    script defer src=(url("uPlot.iife.min.js")) {}
                    script defer src=(url("console.js")) {}
                }
                body {
                    a.skip href="#main" { "Skip to the content" }
                    header.top {
                        a.brand href="/" { "Spillway" }
                        (self.navigation())
                        @if let Some(caller) = self.caller { (account(caller)) }
                    }
                    main #main tabindex="-1" {
                        h1 { (self.title) }
                        (main)
                    }
                }
            }
        }
    }

    /// Links to the views that the caller may see.
    fn navigation(&self) -> Markup {
        let is_there =
            |view: ConsoleView| view != ConsoleView::Demo || HAS_DEMO.load(Ordering::Relaxed);
        let may = |view: &ConsoleView| {
            is_there(*view) && self.caller.is_some_and(|caller| caller.may(view.permission()))
        };
        let views: Vec<_> = ConsoleView::ALL.into_iter().filter(may).collect();
        html! {
            @if !views.is_empty() {
                nav aria-label="Views" {
                    ul {
                        @for view in views {
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
}

/// Name and role of the caller, with the way out where a login has opened a session.
fn account(caller: &Caller) -> Markup {
    html! {
        div.account {
            span { (caller.name) " " span.quiet { (caller.role) } }
            @if caller.credential == Credential::Session {
                form method="post" action="/logout" {
                    (csrf::field(caller))
                    button.plain type="submit" { "Log out" }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Role;
    use crate::pages::testing::{assert_hygiene, caller};

    #[test]
    fn a_page_holds_nothing_inline_and_escapes_its_title() {
        let title = "<script>x</script>";
        let frame = PageFrame { title, view: None, caller: None, is_refreshed: true };
        let text = frame.around(&html! { p { "main" } }).into_string();
        assert!(text.contains("&lt;script&gt;x") && !text.contains("<script>"), "{text}");
        assert_hygiene(&text);
    }

    #[test]
    fn a_caller_sees_the_views_that_are_allowed() {
        let text = |role: Role| ConsoleView::Lanes.page(&caller(role), &html! {}).into_string();
        assert!(!text(Role::Viewer).contains("/dead") && text(Role::Viewer).contains("/shops"));
        assert!(text(Role::Support).contains(r#"href="/dead""#));
        assert!(text(Role::Support).contains(r#"href="/lanes" aria-current="page""#));
        for role in Role::ALL {
            let has_archive = text(role).contains(r#"href="/archive""#);
            assert_eq!(has_archive, role >= Role::Operator, "{role}");
        }
    }

    #[test]
    fn only_a_session_has_a_logout() {
        for credential in [Credential::Session, Credential::Ambient, Credential::Bearer] {
            let caller = Caller { credential, ..caller(Role::Admin) };
            let text = ConsoleView::Lanes.page(&caller, &html! {}).into_string();
            let has_logout = text.contains("/logout");
            assert_eq!(has_logout, credential == Credential::Session, "{credential:?}");
        }
    }
}
