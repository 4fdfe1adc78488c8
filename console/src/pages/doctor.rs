//! Findings of the doctor, the worst first.

use maud::{Markup, html};

use super::figures::{counted, moment};
use super::frame::ConsoleView;
use super::parts::{StateLevel, state};
use crate::access::Caller;
use crate::model::doctor::{DoctorFinding, DoctorReport, FindingLevel};

/// The whole page.
pub fn page(caller: &Caller, report: &DoctorReport) -> Markup {
    let of =
        |level: FindingLevel| report.findings.iter().filter(move |finding| finding.level == level);
    let groups = [
        (FindingLevel::Problem, "problem", "Does not work"),
        (FindingLevel::Warning, "warning", "Could be better"),
        (FindingLevel::Ok, "check", "Is as it should be"),
    ];
    ConsoleView::Doctor.page(
        caller,
        &html! {
            @if report.at_ms == 0 {
                p.notice role="status" { "The checks run: load the page again in a few seconds." }
            } @else {
                p.quiet { "Checked at " (moment(report.at_ms)) " UTC. " a href="/doctor" { "Show the latest" } }
            }
            dl.figures {
                @for (level, noun, title) in groups {
                    @let count = u64::try_from(of(level).count()).unwrap_or(u64::MAX);
                    div {
                        dt { (title) }
                        dd { a.value href={ "#" (noun) } { (counted(count, noun)) } }
                    }
                }
            }
            @for (level, noun, title) in groups {
                section aria-labelledby=(noun) {
                    h2 #(noun) { (title) }
                    @if of(level).next().is_none() { p.quiet { "Nothing." } }
                    ul.findings { @for found in of(level) { (finding(found)) } }
                }
            }
        },
    )
}

fn finding(finding: &DoctorFinding) -> Markup {
    let (level, word) = match finding.level {
        FindingLevel::Ok => (StateLevel::Ok, "ok"),
        FindingLevel::Warning => (StateLevel::Warning, "warning"),
        FindingLevel::Problem => (StateLevel::Bad, "problem"),
    };
    html! {
        li {
            (state(level, word)) " " (finding.what)
            @if !finding.fix.is_empty() { p.fix { (finding.fix) } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Role;
    use crate::pages::testing::{assert_hygiene, assert_numbers_link, caller, hostile};

    #[test]
    fn findings_are_escaped_and_counted() {
        let finding = |level| DoctorFinding { level, what: hostile(), fix: hostile() };
        let findings = vec![finding(FindingLevel::Ok), finding(FindingLevel::Problem)];
        let report = DoctorReport { at_ms: 1, findings };
        let text = page(&caller(Role::Viewer), &report).into_string();
        assert!(text.contains("1 problem") && text.contains("0 warnings"), "{text}");
        assert_hygiene(&text);
        assert_numbers_link(&text);
        let text = page(&caller(Role::Viewer), &DoctorReport::default()).into_string();
        assert!(text.contains("The checks run"), "{text}");
    }
}
