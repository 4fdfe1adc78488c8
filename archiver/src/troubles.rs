//! Reasons for which requests to the archive wait. Several may wait at once: `/readyz` shows one of them until none does.

use std::borrow::Cow;
use std::collections::BTreeMap;

/// Reasons why requests to the archive wait, by what was asked.
#[derive(Debug, Default)]
pub(crate) struct Troubles(BTreeMap<&'static str, String>);

impl Troubles {
    /// Notes why a request waits; `None` if it was done. Returns the reason to show, if any request waits.
    pub(crate) fn note(
        &mut self,
        what: &'static str,
        problem: Option<String>,
    ) -> Option<Cow<'static, str>> {
        match problem {
            Some(problem) => self.0.insert(what, problem),
            None => self.0.remove(what),
        };
        self.0.values().next().map(|problem| problem.clone().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_request_waits_for_is_shown_until_it_is_done() {
        let mut troubles = Troubles::default();
        let mut note = |what, problem: Option<&str>| {
            troubles.note(what, problem.map(str::to_owned)).map(Cow::into_owned)
        };
        assert_eq!(note("reading", Some("no key")).as_deref(), Some("no key"));
        assert_eq!(note("writing", Some("denied")).as_deref(), Some("no key"));
        assert_eq!(note("writing", None).as_deref(), Some("no key"), "it still waits");
        assert_eq!(note("reading", None), None);
    }
}
