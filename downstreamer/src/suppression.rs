//! Settings of the dropping of updates that show nothing new.

use clap::Args;
use spillway_delivery::{StateRole, Suppression};
use spillway_process::Checker;
use spillway_webhook::filter::ConsumerFilter;
use spillway_webhook::shopify::{is_barrier, is_compliance, resource_kind, topic_list};

const TOPICS: &str = "SUPPRESS_TOPICS";
const STALE: &str = "STALE_UPDATES";
const MEMORY: &str = "SUPPRESS_MEMORY";
const MIB: u64 = 1 << 20;
/// Most by which Redis' clock is behind Shopify's. Clocks that are synchronised differ by less than a second, and
/// an allowance that is too large only delivers a few updates more.
const CLOCK_SKEW_MAX_MS: u64 = 300_000;

/// The settings of suppression as given.
#[derive(Debug, Args)]
pub(crate) struct SuppressionArgs {
    /// Topics of which an update is dropped if it shows the state that was delivered last, except for
    /// its time, comma separated, such as products/update,inventory_levels/update; default: none
    #[arg(long, env = "SUPPRESS_TOPICS", default_value = "")]
    suppress_topics: String,

    /// Updates of these topics that are older than the last delivered one: deliver, or drop
    #[arg(long, env = "STALE_UPDATES", default_value = "deliver")]
    stale_updates: String,

    /// Memory for the last delivered states, about 170 bytes for each resource; at the limit the
    /// oldest are forgotten, and the next update is delivered [1MiB to 16GiB]
    #[arg(long, env = "SUPPRESS_MEMORY", default_value = "64MiB")]
    suppress_memory: String,
}

/// The settings of suppression, checked.
#[derive(Debug, Clone, Default)]
pub struct SuppressionSettings {
    /// Topics whose updates are compared with the last delivered one.
    pub topics: Vec<String>,
    /// Kinds of their resources.
    kinds: Vec<String>,
    /// Settings of the delivery core.
    pub core: Suppression,
}

impl SuppressionArgs {
    /// Checks the settings.
    pub(crate) fn check(&self, checker: &mut Checker, order_by: &str) -> SuppressionSettings {
        let topics = topic_list(&self.suppress_topics);
        for topic in &topics {
            if let Some(problem) = problem_of(topic) {
                checker.mistake(TOPICS, format_args!("{topic} {problem}"));
            }
        }
        if !topics.is_empty() && order_by.trim() != "resource" {
            checker
                .mistake(TOPICS, "needs ORDER_BY=resource: updates of one resource are compared");
        }
        let choices = [("deliver", false), ("drop", true)];
        let drops_stale = checker.choice(STALE, &self.stale_updates, &choices);
        if drops_stale && topics.is_empty() {
            checker
                .mistake(STALE, "needs SUPPRESS_TOPICS: it concerns the updates of these topics");
        }
        let bytes = checker.size(MEMORY, &self.suppress_memory, MIB..=16 * 1024 * MIB);
        let bytes = usize::try_from(bytes).expect("BUG: the range ends below 2^63");
        let bytes = if topics.is_empty() { 0 } else { bytes };
        let kinds = topics.iter().map(|topic| resource_kind(topic)).collect();
        let core = Suppression { bytes, drops_stale, clock_skew_ms: CLOCK_SKEW_MAX_MS };
        SuppressionSettings { topics, kinds, core }
    }
}

impl SuppressionSettings {
    /// Warning for the operator if the consumer does not take all webhooks that may change a resource whose updates are
    /// compared: what another consumer sends to the same backend is not known here.
    pub fn warning(&self, filter: &ConsumerFilter) -> Option<&'static str> {
        const WARNING: &str = "SUPPRESS_TOPICS is set, and a filter of this consumer (ONLY_… or EXCEPT_…) leaves webhooks out. \
            If another consumer sends webhooks of the same resources, or customers/redact, shop/redact or app/uninstalled, to \
            the same backend, an update that the backend needs may be dropped: let one consumer deliver all topics of these \
            resources and those three to this backend, or unset SUPPRESS_TOPICS. If no other consumer delivers to this \
            backend, ignore this";
        (!self.topics.is_empty() && !filter.is_empty()).then_some(WARNING)
    }

    /// Part in the comparison of a webhook of this topic that names its resource.
    pub(crate) fn role(&self, topic: &[u8]) -> StateRole {
        if self.topics.iter().any(|one| one.as_bytes() == topic) {
            StateRole::Compared
        } else if self.is_listed_kind(topic) {
            StateRole::MayShow
        } else {
            StateRole::None
        }
    }

    /// True for a webhook after which the state of no resource is known: a barrier, and one that names
    /// no resource, of a kind whose updates are compared.
    pub(crate) fn hides_states(&self, topic: &[u8], names_none: bool) -> bool {
        is_barrier(topic) || (names_none && self.is_listed_kind(topic))
    }

    /// True if updates of the kind of this topic are compared.
    fn is_listed_kind(&self, topic: &[u8]) -> bool {
        !self.kinds.is_empty() && self.kinds.contains(&kind_of(topic))
    }
}

/// Kind of the resources of a topic, the same for classic webhooks and Events.
fn kind_of(topic: &[u8]) -> String {
    resource_kind(&String::from_utf8_lossy(topic))
}

/// Reason why a topic may not be suppressed.
fn problem_of(topic: &str) -> Option<&'static str> {
    let (kind, event) = topic.split_once('/').unwrap_or((topic, ""));
    if is_compliance(topic.as_bytes()) || is_barrier(topic.as_bytes()) {
        Some("must be delivered for legal reasons, each of its events")
    } else if kind.is_empty() || event.is_empty() || topic.contains('*') {
        Some("is not a topic, such as products/update or Product/update")
    } else if matches!(event, "create" | "delete") {
        Some("occurs once for each resource, so each is delivered")
    } else if !matches!(event, "update" | "updated") {
        Some("is not an update: only topics that end in /update or /updated hold a state")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Program {
        #[command(flatten)]
        suppression: SuppressionArgs,
    }

    fn checked(order_by: &str, arguments: &[&str]) -> Result<SuppressionSettings, String> {
        let program = Program::parse_from(["program"].iter().chain(arguments));
        let mut checker = Checker::default();
        let settings = program.suppression.check(&mut checker, order_by);
        checker.finish(settings).map_err(|mistakes| mistakes.to_string())
    }

    #[test]
    fn without_topics_nothing_is_compared() {
        let settings = checked("shop", &[]).expect("no mistake");
        assert!(settings.topics.is_empty() && settings.core.bytes == 0);
    }

    #[test]
    fn only_updates_may_be_suppressed() {
        let topics = "products/update, Product/update,orders/updated";
        let arguments = ["--suppress-topics", topics, "--stale-updates", "drop"];
        let settings = checked("resource", &arguments).expect("no mistake");
        for (topic, role) in [
            ("Product/update", StateRole::Compared),
            ("products/create", StateRole::MayShow),
            ("orders/create", StateRole::MayShow),
            ("carts/update", StateRole::None),
        ] {
            assert_eq!(settings.role(topic.as_bytes()), role, "{topic}");
        }
        assert!(settings.core.drops_stale && settings.core.bytes == 64 << 20);
        let refused =
            ["products/create", "products/delete", "shop/redact", "customers/data_request"];
        for topic in refused.into_iter().chain(["app/uninstalled", "orders/paid", "products/*"]) {
            let told = checked("resource", &["--suppress-topics", topic]).expect_err(topic);
            assert!(told.contains("SUPPRESS_TOPICS") && told.contains(topic), "{told}");
        }
    }

    #[test]
    fn a_filter_beside_suppression_is_worth_a_warning() {
        let everything = ConsumerFilter::default();
        let mut filter = ConsumerFilter::default();
        filter.topics.except.push("app/*".to_owned());
        let settings = checked("resource", &["--suppress-topics", "products/update"]);
        let settings = settings.expect("no mistake");
        assert_eq!(settings.warning(&everything), None);
        assert!(
            settings.warning(&filter).is_some_and(|told| told.contains("unset SUPPRESS_TOPICS"))
        );
        let off = checked("shop", &[]).expect("no mistake");
        assert_eq!(off.warning(&filter), None);
    }

    #[test]
    fn what_may_change_any_resource_hides_the_states_of_all() {
        let settings = checked("resource", &["--suppress-topics", "products/update"]);
        let settings = settings.expect("no mistake");
        for topic in ["products/create", "products/update", "Product/delete"] {
            assert!(settings.hides_states(topic.as_bytes(), true), "{topic}");
            assert!(!settings.hides_states(topic.as_bytes(), false), "{topic} of one resource");
        }
        assert!(!settings.hides_states(b"carts/update", true), "another kind");
        for topic in ["customers/redact", "shop/redact", "app/uninstalled"] {
            assert!(settings.hides_states(topic.as_bytes(), false), "{topic}");
        }
    }

    #[test]
    fn settings_that_contradict_each_other_are_refused() {
        let told = checked("shop", &["--suppress-topics", "products/update"]).expect_err("order");
        assert!(told.contains("ORDER_BY=resource"), "{told}");
        let told = checked("resource", &["--stale-updates", "drop"]).expect_err("no topics");
        assert!(told.contains("STALE_UPDATES") && told.contains("SUPPRESS_TOPICS"), "{told}");
        let told = checked("resource", &["--stale-updates", "maybe"]).expect_err("no choice");
        assert!(told.contains("STALE_UPDATES"), "{told}");
    }
}
