//! Checks the archive: its lag, and its checkpoint of the consumers. Also the redactions that wait for their purge.

use std::time::Duration;

use spillway_archive::args::ArchiveArgs;
use spillway_archive::{StoreError, checkpoint};
use spillway_process::error::chain;
use spillway_queue::consumers::ARCHIVE;
use spillway_queue::status::ConsumerStatus;
use tokio::time::timeout;

use super::finding::Finding;
use super::queue::ExaminedQueue;
use crate::archive;
use crate::out::age;

/// Lag from which the archive is reported, as the alert does: ten times the default of `ARCHIVE_MAX_DELAY`.
const LAG_SECONDS: f64 = 600.0;
/// Age from which a checkpoint is old. While nothing changes, one is written every 10 minutes, or a sixth of
/// `ARCHIVE_MAX_DELAY` later.
const CHECKPOINT_OLD_SECONDS: f64 = 1_800.0;
/// Time for the archive's answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// Checks the archive, if the cell has one.
pub(super) async fn examine(settings: &ArchiveArgs, queue: &ExaminedQueue) -> Vec<Finding> {
    let Some(consumer) = queue.consumers.iter().find(|consumer| consumer.name == ARCHIVE) else {
        return Vec::new();
    };
    let mut findings = vec![lag(consumer)];
    findings.extend(checkpoint_of(settings, queue).await);
    findings
}

fn lag(consumer: &ConsumerStatus) -> Finding {
    let seconds = consumer.oldest_age_seconds.unwrap_or(0.0);
    let what = format!("the archive lags by {}", age(seconds));
    if seconds <= LAG_SECONDS {
        return Finding::ok(what);
    }
    let fix = "curl -s http://127.0.0.1:9814/readyz says what the archiver waits for; until then the queue keeps \
               everything";
    Finding::warning(what, fix)
}

async fn checkpoint_of(settings: &ArchiveArgs, queue: &ExaminedQueue) -> Option<Finding> {
    let cell = queue.cell?;
    if settings.archive_url.as_deref().is_none_or(|url| url.trim().is_empty()) {
        return Some(Finding::ok(
            "the checkpoint in the archive is not looked at: add the archiver's settings, such as --env-file \
             /etc/spillway/archiver.env",
        ));
    }
    let archive = match archive::open(settings) {
        Ok(archive) => archive,
        Err(failure) => {
            let fix = "give the settings that the archiver has";
            return Some(Finding::problem(format!("the archive cannot be opened: {failure}"), fix));
        }
    };
    let read = timeout(PATIENCE, checkpoint::read(&archive.store, cell)).await;
    Some(match read {
        Ok(Ok(read)) => {
            checkpoint_finding(read.map(|checkpoint| checkpoint.read_at_ms), queue.now_ms)
        }
        Ok(Err(error)) => unread(&error),
        Err(_) => Finding::warning(
            format!("the archive did not answer within {} s", PATIENCE.as_secs()),
            "check ARCHIVE_URL, and the access to it",
        ),
    })
}

fn unread(error: &StoreError) -> Finding {
    let fix =
        "check ARCHIVE_URL, and the access to it; a damaged checkpoint is replaced by the next one";
    Finding::warning(format!("the checkpoint in the archive cannot be read: {}", chain(error)), fix)
}

/// Finding for a checkpoint of this time; `None`: there is none.
fn checkpoint_finding(read_at_ms: Option<u64>, now_ms: u64) -> Finding {
    let fix = "journalctl -u spillway-archiver -g checkpoint; what was delivered since is delivered again if Redis \
               loses its disk now";
    let Some(read_at_ms) = read_at_ms else {
        return Finding::warning("the archive has no checkpoint of the consumers", fix);
    };
    let since = Duration::from_millis(now_ms.saturating_sub(read_at_ms)).as_secs_f64();
    let what = format!("the checkpoint of the consumers in the archive is {} old", age(since));
    if since <= CHECKPOINT_OLD_SECONDS { Finding::ok(what) } else { Finding::warning(what, fix) }
}

/// Finding for the oldest redaction that was delivered and is not carried out, if there is one.
pub(super) fn redactions(oldest_seconds: Option<f64>, within: Duration) -> Option<Finding> {
    let oldest = oldest_seconds?;
    let within = within.as_secs_f64();
    let what = format!(
        "the oldest redaction that is not carried out was delivered {} ago, REDACT_WITHIN is {}",
        age(oldest),
        age(within),
    );
    if oldest <= within {
        return Some(Finding::ok(what));
    }
    let fix = "spillway forget --due, with the archiver's settings, says what is left; systemctl status spillway-forget";
    Some(Finding::problem(what, fix))
}

#[cfg(test)]
mod tests {
    use super::super::finding::Severity;
    use super::*;

    #[test]
    fn an_archive_that_lags_is_a_warning() {
        let of = |oldest_age_seconds| {
            lag(&ConsumerStatus { oldest_age_seconds, ..ConsumerStatus::default() })
        };
        assert_eq!(of(None).level, Severity::Ok);
        assert_eq!(of(Some(60.0)).level, Severity::Ok);
        let late = of(Some(7_200.0));
        assert_eq!(late.level, Severity::Warning);
        assert!(late.what.contains("2h"), "{}", late.what);
    }

    #[test]
    fn an_old_checkpoint_and_a_missing_one_are_warnings() {
        let now_ms = 10_000_000;
        assert_eq!(checkpoint_finding(Some(now_ms), now_ms).level, Severity::Ok);
        assert_eq!(checkpoint_finding(Some(now_ms - 1_800_000), now_ms).level, Severity::Ok);
        assert_eq!(checkpoint_finding(Some(now_ms - 1_801_000), now_ms).level, Severity::Warning);
        assert_eq!(checkpoint_finding(Some(now_ms + 5_000), now_ms).level, Severity::Ok);
        assert_eq!(checkpoint_finding(None, now_ms).level, Severity::Warning);
    }

    #[test]
    fn a_redaction_that_waits_too_long_is_a_problem() {
        let day = Duration::from_secs(86_400);
        let of = |oldest| redactions(oldest, day).map(|finding| finding.level);
        assert_eq!(of(None), None);
        assert_eq!(of(Some(43_300.0)), Some(Severity::Ok));
        assert_eq!(of(Some(86_401.0)), Some(Severity::Problem));
    }
}
