//! Log lines about how safe the queue is. They appear at each change, whatever happens to
//! readiness.

use spillway_queue::health::Durability;

/// Durability and warnings as last logged.
#[derive(Debug, Default)]
pub struct SafetyLog(Option<(Durability, Vec<&'static str>)>);

impl SafetyLog {
    /// Logs the warnings if they or the durability have changed, or if the queue `is_newly_ready`.
    pub fn show(
        &mut self,
        durability: Durability,
        warnings: &[&'static str],
        is_newly_ready: bool,
    ) {
        let has_changed = self.update(durability, warnings);
        if !has_changed && !is_newly_ready {
            return;
        }
        let durability = durability as u8;
        if warnings.is_empty() && !is_newly_ready {
            tracing::info!(durability, "durability is as required");
        }
        for warning in warnings {
            tracing::warn!(warning, durability, "redis can lose answered webhooks");
        }
    }

    /// Stores the present state. Returns true if it differs from the last one.
    fn update(&mut self, durability: Durability, warnings: &[&'static str]) -> bool {
        let is_same = self
            .0
            .as_ref()
            .is_some_and(|(before, logged)| *before == durability && logged == warnings);
        if !is_same {
            self.0 = Some((durability, warnings.to_vec()));
        }
        !is_same
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_durability_or_of_warnings_is_news_once() {
        let mut log = SafetyLog::default();
        assert!(log.update(Durability::Always, &[]), "nothing was logged before");
        assert!(!log.update(Durability::Always, &[]));
        assert!(log.update(Durability::EverySecond, &["a crash can lose webhooks"]));
        assert!(!log.update(Durability::EverySecond, &["a crash can lose webhooks"]));
        assert!(log.update(Durability::None, &["a crash can lose webhooks"]), "it got worse");
        assert!(log.update(Durability::None, &["maxmemory is 0", "a crash can lose webhooks"]));
        assert!(log.update(Durability::Always, &[]), "it is fixed");
        assert!(!log.update(Durability::Always, &[]));
    }
}
