//! A search in the audit, newest first. It reads a bounded number of records for each page.

use spillway_queue::Connection;
use spillway_queue::audit::{Audit, AuditRecord};
use spillway_webhook::StreamId;

use crate::failure::Failure;

/// Records that are read by one command of Redis.
const READ_AT_ONCE: usize = 500;
/// Records that one page looks at. It may find fewer, or none, and has a cursor to go on.
const LOOKED_AT_MAX: usize = 5_000;

/// Records to look for.
#[derive(Debug)]
pub(super) struct AuditSearch<'a> {
    /// User, token or user of a machine.
    pub actor: Option<&'a str>,
    /// Command.
    pub verb: Option<&'a str>,
    /// Earliest time at which a change began.
    pub since_ms: u64,
    /// Latest time at which a change began.
    pub until_ms: u64,
}

/// Records that were found, newest first.
pub(super) struct FoundRecords {
    /// The records.
    pub records: Vec<AuditRecord>,
    /// The last record that was looked at, if there may be more.
    pub next: Option<StreamId>,
}

impl AuditSearch<'_> {
    /// Finds up to `limit` records, and looks at a bounded number.
    pub(super) async fn page(
        &self,
        audit: &Audit,
        connection: &mut Connection,
        after: Option<StreamId>,
        limit: usize,
    ) -> Result<FoundRecords, Failure> {
        let mut found = FoundRecords { records: Vec::new(), next: after };
        let mut looked_at = 0;
        while looked_at < LOOKED_AT_MAX {
            let page = audit.page(connection, found.next, READ_AT_ONCE).await?;
            let is_last = page.len() < READ_AT_ONCE;
            looked_at += page.len();
            for record in page {
                // Ids are of the end, so a record that is as old began before that.
                if record.id.ms < self.since_ms {
                    return Ok(FoundRecords { next: None, ..found });
                }
                found.next = Some(record.id);
                if self.is_meant(&record) {
                    found.records.push(record);
                }
                if found.records.len() >= limit {
                    return Ok(found);
                }
            }
            if is_last {
                return Ok(FoundRecords { next: None, ..found });
            }
        }
        Ok(found)
    }

    fn is_meant(&self, record: &AuditRecord) -> bool {
        (self.since_ms..=self.until_ms).contains(&record.began_ms)
            && self.actor.is_none_or(|actor| record.change.actor == actor)
            && self.verb.is_none_or(|verb| record.change.verb == verb)
    }
}

#[cfg(test)]
mod tests {
    use spillway_queue::audit::{AuditWay, AuditedChange};

    use super::*;

    #[test]
    fn records_are_found_by_who_and_what_and_when() {
        let change = AuditedChange {
            actor: "mia".to_owned(),
            way: AuditWay::Api,
            verb: "dead replay".to_owned(),
            consumer: "http".to_owned(),
            filter: "shop a.myshopify.com".to_owned(),
        };
        let record = AuditRecord { id: StreamId { ms: 9, seq: 0 }, change, began_ms: 7, end: None };
        let is_found = |actor, verb, since_ms, until_ms| {
            AuditSearch { actor, verb, since_ms, until_ms }.is_meant(&record)
        };
        assert!(is_found(None, None, 0, u64::MAX));
        assert!(is_found(Some("mia"), Some("dead replay"), 7, 7));
        assert!(!is_found(Some("leo"), None, 0, 9) && !is_found(None, Some("dead"), 0, 9));
        assert!(!is_found(None, None, 8, 9), "it began before");
        assert!(!is_found(None, None, 0, 6), "it began after");
    }
}
