//! Settings of a consumer: its name, and the webhooks that it delivers.

use clap::Args;
use spillway_process::Checker;
use spillway_queue::consumers::{ConsumerKind, ConsumerName, NotAConsumerName};
use spillway_webhook::ConsumerFilter;
use spillway_webhook::filter::FilterLists;
use spillway_webhook::received::is_plain_name;
use spillway_webhook::shopify::{is_shop_domain, is_topic_pattern};
use spillway_webhook::target::is_path_pattern;

/// Longest JSON of a filter. Each process reads that of each consumer once a second.
const FILTER_BYTES_MAX: usize = 64 << 10;

/// Settings of a consumer as given, before they are checked.
#[derive(Debug, Clone, Args)]
pub struct NamedConsumerArgs {
    /// Name of this consumer of the queue, which has its own cursor, lanes and dead letters: 1 to 64
    /// letters, digits, '-', '_' or '.'; default: http for the downstreamer, kafka for the Kafka
    /// producer
    #[arg(long, env = "CONSUMER")]
    consumer: Option<String>,

    /// Deliver only webhooks of these topics, comma separated; orders/* means all of a kind. What a
    /// consumer does not deliver, it settles without delivery; default: all
    #[arg(long, env = "ONLY_TOPICS", default_value = "")]
    only_topics: String,

    /// Deliver no webhook of these topics, even if ONLY_TOPICS has it; default: none
    #[arg(long, env = "EXCEPT_TOPICS", default_value = "")]
    except_topics: String,

    /// Deliver only webhooks of these shops, comma separated, such as a.myshopify.com; default: all
    #[arg(long, env = "ONLY_SHOPS", default_value = "")]
    only_shops: String,

    /// Deliver no webhook of these shops; default: none
    #[arg(long, env = "EXCEPT_SHOPS", default_value = "")]
    except_shops: String,

    /// Deliver only webhooks that were sent to these paths, comma separated and without a query;
    /// /hooks/* means all that begin with /hooks/; default: all
    #[arg(long, env = "ONLY_PATHS", default_value = "")]
    only_paths: String,

    /// Deliver no webhook that was sent to these paths; default: none
    #[arg(long, env = "EXCEPT_PATHS", default_value = "")]
    except_paths: String,

    /// Deliver only webhooks for these apps of APPS_FILE, comma separated; default: all
    #[arg(long, env = "ONLY_APPS", default_value = "")]
    only_apps: String,

    /// Deliver no webhook for these apps; default: none
    #[arg(long, env = "EXCEPT_APPS", default_value = "")]
    except_apps: String,
}

/// Settings of a consumer, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerSettings {
    /// Program whose consumer it is.
    pub kind: ConsumerKind,
    /// Name of the consumer.
    pub name: ConsumerName,
    /// Webhooks that it delivers.
    pub filter: ConsumerFilter,
}

/// Form of the values of a list.
#[derive(Clone, Copy)]
struct ValueForm {
    is_right: fn(&str) -> bool,
    /// Sentence about a value that has another form.
    problem: &'static str,
}

const TOPICS: ValueForm = ValueForm {
    is_right: is_topic_pattern,
    problem: "is not a topic, such as orders/create, Product/update or orders/*",
};
const SHOPS: ValueForm = ValueForm {
    is_right: is_shop_domain,
    problem: "is not the domain of a shop, such as a.myshopify.com",
};
const PATHS: ValueForm =
    ValueForm { is_right: is_path_pattern, problem: "is not a path, such as /hooks or /hooks/*" };
const APPS: ValueForm = ValueForm {
    is_right: is_plain_name,
    problem: "is not the name of an app: 1 to 64 letters, digits, '-', '_' or '.'",
};

impl NamedConsumerArgs {
    /// Checks the settings of a consumer of this kind.
    pub fn check(&self, checker: &mut Checker, kind: ConsumerKind) -> ConsumerSettings {
        let filter = ConsumerFilter {
            topics: FilterLists {
                only: list(checker, "ONLY_TOPICS", &self.only_topics, TOPICS),
                except: list(checker, "EXCEPT_TOPICS", &self.except_topics, TOPICS),
            },
            shops: FilterLists {
                only: list(checker, "ONLY_SHOPS", &self.only_shops, SHOPS),
                except: list(checker, "EXCEPT_SHOPS", &self.except_shops, SHOPS),
            },
            paths: FilterLists {
                only: list(checker, "ONLY_PATHS", &self.only_paths, PATHS),
                except: list(checker, "EXCEPT_PATHS", &self.except_paths, PATHS),
            },
            apps: FilterLists {
                only: list(checker, "ONLY_APPS", &self.only_apps, APPS),
                except: list(checker, "EXCEPT_APPS", &self.except_apps, APPS),
            },
        };
        let bytes = filter.to_json().len();
        if bytes > FILTER_BYTES_MAX {
            checker.mistake(
                "ONLY_SHOPS",
                format_args!(
                    "and the other ONLY_ and EXCEPT_ settings take {bytes} bytes as JSON, of at most \
                     {FILTER_BYTES_MAX}"
                ),
            );
        }
        ConsumerSettings { kind, name: self.name(checker, kind), filter }
    }

    fn name(&self, checker: &mut Checker, kind: ConsumerKind) -> ConsumerName {
        const KEY: &str = "CONSUMER";
        let given = self.consumer.as_deref().map(str::trim).filter(|name| !name.is_empty());
        let parsed = given.map(str::parse::<ConsumerName>).transpose();
        let name = parsed.unwrap_or_else(|problem: NotAConsumerName| {
            checker.mistake(KEY, problem);
            None
        });
        let name = name.unwrap_or_else(|| kind.default_name());
        if let Some(other) = ConsumerKind::of_default_name(&name).filter(|other| *other != kind) {
            let other = other.label();
            checker.mistake(KEY, format_args!("{name} is reserved for {other}; choose another"));
        }
        name
    }
}

impl ConsumerSettings {
    /// Consumer with the default name of its kind that takes every webhook.
    pub fn of_everything(kind: ConsumerKind) -> Self {
        Self { kind, name: kind.default_name(), filter: ConsumerFilter::default() }
    }
}

fn list(checker: &mut Checker, key: &str, text: &str, form: ValueForm) -> Vec<String> {
    let values = text.split(',').map(str::trim).filter(|value| !value.is_empty());
    let values: Vec<String> = values.map(str::to_owned).collect();
    for value in values.iter().filter(|value| !(form.is_right)(value)) {
        checker.mistake(key, format_args!("{value} {}", form.problem));
    }
    values
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        consumer: NamedConsumerArgs,
    }

    fn checked(kind: ConsumerKind, arguments: &[&str]) -> Result<ConsumerSettings, String> {
        let command = Command::parse_from(["x"].iter().chain(arguments));
        let mut checker = Checker::default();
        let settings = command.consumer.check(&mut checker, kind);
        checker.finish(settings).map_err(|mistakes| mistakes.to_string())
    }

    #[test]
    fn without_settings_each_program_has_its_own_name_and_takes_everything() {
        let downstreamer = checked(ConsumerKind::Downstreamer, &[]).expect("no mistake");
        let producer = checked(ConsumerKind::KafkaProducer, &["--consumer", ""]);
        assert_eq!(&*downstreamer.name, "http");
        assert_eq!(&*producer.expect("no mistake").name, "kafka");
        assert!(downstreamer.filter.is_empty());
    }

    #[test]
    fn every_list_is_read() {
        let settings = checked(
            ConsumerKind::Downstreamer,
            &[
                "--consumer",
                "billing",
                "--only-topics",
                "orders/*, Order/*,",
                "--except-topics",
                "orders/edited",
                "--only-shops",
                "a.myshopify.com,b.myshopify.com",
                "--except-paths",
                "/test/*",
                "--only-apps",
                "stock",
            ],
        );
        let settings = settings.expect("no mistake");
        assert_eq!(&*settings.name, "billing");
        assert_eq!(
            settings.filter.to_string(),
            "only topics orders/*, Order/*; except topics orders/edited; \
             only shops a.myshopify.com, b.myshopify.com; except paths /test/*; only apps stock"
        );
    }

    #[test]
    fn a_value_that_matches_nothing_is_a_mistake_that_names_its_key() {
        for (flag, bad) in [
            ("--consumer", "a b"),
            ("--only-topics", "orders"),
            ("--only-topics", "or*/create"),
            ("--except-topics", "orders/cr*te"),
            ("--only-shops", "a"),
            ("--except-shops", "*.myshopify.com"),
            ("--only-paths", "hooks"),
            ("--except-paths", "/a*/b"),
            ("--only-apps", "my app"),
            ("--except-apps", "*"),
        ] {
            let told = checked(ConsumerKind::Downstreamer, &[flag, bad]).expect_err(bad);
            let key = flag.trim_start_matches('-').replace('-', "_").to_uppercase();
            assert!(told.starts_with(&format!("{key}: ")), "{flag} {bad}: {told}");
        }
    }

    #[test]
    fn programs_never_share_a_default_name() {
        for (kind, name) in [
            (ConsumerKind::Downstreamer, "kafka"),
            (ConsumerKind::Downstreamer, "archive"),
            (ConsumerKind::KafkaProducer, "http"),
            (ConsumerKind::KafkaProducer, "archive"),
        ] {
            let told = checked(kind, &["--consumer", name]).expect_err(name);
            assert!(told.starts_with("CONSUMER: "), "{told}");
        }
    }

    #[test]
    fn a_filter_is_bounded() {
        let shops: Vec<String> = (0..4000).map(|shop| format!("{shop}.myshopify.com")).collect();
        let told = checked(ConsumerKind::Downstreamer, &["--only-shops", &shops.join(",")]);
        assert!(told.expect_err("too long").contains("65536"));
        let told = checked(ConsumerKind::Downstreamer, &["--only-shops", &shops[..1000].join(",")]);
        assert!(told.is_ok());
    }
}
