//! `spillway status`: the queue, its consumers and the dead letters at a glance.

mod check;
mod watch;

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use spillway_queue::controls::Pause;
use spillway_queue::shares::large_shops;
use spillway_queue::status::{CellStatus, ConsumerStatus, QueueStatus, read};
use spillway_webhook::freshness::rfc3339;

use crate::failure::Failure;
use crate::format::OutputArgs;
use crate::out::{age, count, line, printable, size, table};
use crate::place::CellArgs;

/// Percentage of `maxmemory` from which a shop is shown.
const SHOWN_PERCENT: u64 = 10;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    place: CellArgs,

    #[command(flatten)]
    output: OutputArgs,

    /// Repeat until interrupted, with the rates in between
    #[arg(short, long, conflicts_with = "check")]
    watch: bool,

    /// Time between two outputs, with --watch
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = watch::interval)]
    every: Duration,

    /// Print one line for monitoring; exit code 0: ok, 1: warning, 2: critical
    #[arg(long)]
    check: bool,

    #[command(flatten)]
    thresholds: check::Thresholds,
}

/// Prints the status.
pub(crate) async fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    if arguments.check {
        let read = look(&arguments.place).await;
        return check::tell(read, &arguments.thresholds, arguments.output);
    }
    if arguments.watch {
        return watch::run(&arguments.place, arguments.every, arguments.output).await;
    }
    let status = look(&arguments.place).await?;
    if arguments.output.is_json() {
        let json = serde_json::to_string_pretty(&status).expect("BUG: a status is JSON");
        line(json)?;
    } else {
        line(text(&status, arguments.output))?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn look(place: &CellArgs) -> Result<CellStatus, Failure> {
    let (redis, mut connection) = place.connect().await?;
    Ok(read(&redis, &mut connection).await?)
}

/// Columns of a consumer: all of them if the output is wide, else the first ones.
const HEADER: [&str; 13] = [
    "CONSUMER",
    "WAITING",
    "OLDEST",
    "STATE",
    "LEADER",
    "LAST SEEN",
    "PARKED",
    "DEAD LETTERS",
    "CURSOR",
    "SETTLED",
    "DROPPED",
    "TOKEN",
    "DELIVERS",
];
const COLUMNS: usize = 8;

/// The consumers as a table, or a sentence if there is none.
pub(crate) fn consumers_text(consumers: &[ConsumerStatus], output: OutputArgs) -> String {
    if consumers.is_empty() {
        return "no consumer is registered: nothing is delivered or freed. Start a downstreamer"
            .to_owned();
    }
    let columns = if output.is_wide() { HEADER.len() } else { COLUMNS };
    let rows = consumers.iter().map(|consumer| consumer_row(consumer).into_iter().take(columns));
    let mut text = table(&HEADER[..columns], rows);
    for consumer in consumers {
        let name = &consumer.name;
        if let Some(state) = state_of(consumer).filter(|state| state.contains([':', ';'])) {
            text.push_str(&format!("\n{name}: {}", printable(state.as_bytes())));
        }
        for Pause { filter, since_ms } in &consumer.pauses {
            let since = rfc3339(*since_ms);
            text.push_str(&format!("\n{name}: paused since {since}: {filter}"));
        }
    }
    text
}

/// Answer of the leader's `/readyz`; `None` if there is no live leader, or it is not known.
pub(crate) fn state_of(consumer: &ConsumerStatus) -> Option<&str> {
    let leader = consumer.leader.as_ref().filter(|_| consumer.has_live_leader())?;
    leader.instance.as_ref().map(|instance| instance.state.as_str())
}

/// First word of a state, for a column.
fn code_of(consumer: &ConsumerStatus) -> String {
    let code = state_of(consumer).and_then(|state| state.split([':', ';']).next());
    match code {
        Some(code) => code.to_owned(),
        None if consumer.has_live_leader() => "-".to_owned(),
        None => "no leader".to_owned(),
    }
}

fn consumer_row(consumer: &ConsumerStatus) -> [String; HEADER.len()] {
    let dead = match consumer.dead.letters {
        0 => "0".to_owned(),
        letters => format!("{letters} ({})", size(consumer.dead.bytes)),
    };
    [
        consumer.name.clone(),
        consumer.waiting.to_string(),
        consumer.oldest_age_seconds.map_or_else(|| "-".to_owned(), age),
        code_of(consumer),
        consumer.leader.as_ref().map_or_else(|| "none".to_owned(), ToString::to_string),
        consumer
            .last_seen
            .ago_seconds
            .map_or_else(|| "never".to_owned(), |s| format!("{} ago", age(s))),
        consumer.parked.to_string(),
        dead,
        consumer.cursor.clone(),
        consumer.settled.to_string(),
        consumer.dropped.to_string(),
        consumer.leader.as_ref().map_or_else(|| "-".to_owned(), |leader| leader.token.clone()),
        delivers(consumer),
    ]
}

/// Webhooks that a consumer delivers.
fn delivers(consumer: &ConsumerStatus) -> String {
    match &consumer.notes.filter {
        _ if !consumer.delivers() => "nothing: an archive".to_owned(),
        Some(filter) => filter.to_string(),
        None => "-".to_owned(),
    }
}

fn text(status: &CellStatus, output: OutputArgs) -> String {
    let consumers = consumers_text(&status.consumers, output);
    format!("{}\n\n{consumers}{}", queue_text(&status.queue), shops_text(status))
}

/// One line for each shop that takes much of Redis' memory.
fn shops_text(status: &CellStatus) -> String {
    let mut text = String::new();
    for consumer in &status.consumers {
        for shop in large_shops(status, consumer).unwrap_or_default() {
            let percent = shop.bytes * 100 / status.queue.limit_bytes.max(1);
            if status.queue.limit_bytes > 0 && percent >= SHOWN_PERCENT {
                let waiting = count(shop.share.waiting, "webhook");
                let bytes = size(shop.bytes);
                let consumer = &consumer.name;
                let shop = shop.share.label();
                text.push_str(&format!(
                    "\n{consumer}: {waiting} of shop {shop} take about {bytes}, {percent} % of redis' \
                     maxmemory"
                ));
            }
        }
    }
    text
}

fn queue_text(queue: &QueueStatus) -> String {
    let limit = match queue.limit_bytes {
        0 => "no limit is set (maxmemory)".to_owned(),
        limit => {
            format!("{} of {}", queue.bytes * 100 / limit, size(limit)).replacen(' ', " % ", 1)
        }
    };
    format!(
        "main stream: {} in {}, redis uses {} ({limit}); {} accepted so far",
        count(queue.webhooks, "webhook"),
        count(queue.packs, "pack"),
        size(queue.bytes),
        queue.accepted,
    )
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use spillway_queue::controls::Filter;
    use spillway_queue::status::{DeadTotals, LastSeen, LeaderInstance, LeaderNotes, LeaderStatus};

    #[derive(clap::Parser)]
    struct Flags {
        #[command(flatten)]
        output: OutputArgs,
    }

    fn output(format: &str) -> OutputArgs {
        Flags::parse_from(["x", "-o", format]).output
    }

    fn consumer() -> ConsumerStatus {
        ConsumerStatus {
            name: "http".to_owned(),
            waiting: 12,
            oldest_age_seconds: Some(61.5),
            leader: Some(LeaderStatus { token: "0123456789abcdef".to_owned(), instance: None }),
            last_seen: LastSeen { ago_seconds: Some(0.3), at_ms: 1 },
            parked: 2,
            dead: DeadTotals { letters: 3, bytes: 2048 },
            cursor: "5-0".to_owned(),
            ..ConsumerStatus::default()
        }
    }

    #[test]
    fn it_is_read_at_a_glance() {
        let queue = QueueStatus {
            packs: 1,
            webhooks: 12,
            bytes: 512,
            limit_bytes: 1024,
            accepted: 99,
            oldest_redaction_age_seconds: None,
        };
        let text =
            text(&CellStatus { queue, consumers: vec![consumer()], now_ms: 0 }, output("table"));
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines[0],
            "main stream: 12 webhooks in 1 pack, redis uses 512 B (50 % of 1.0 KiB); 99 accepted so far"
        );
        let cells: Vec<_> = lines[3].split("  ").map(str::trim).filter(|c| !c.is_empty()).collect();
        let expected =
            ["http", "12", "1m 1s", "-", "0123456789abcdef", "0s ago", "2", "3 (2.0 KiB)"];
        assert_eq!(cells, expected, "an instance of an earlier version");
        let wide = consumers_text(&[consumer()], output("wide"));
        assert!(wide.contains("  CURSOR  ") && wide.contains("  5-0  "), "{wide}");
    }

    #[test]
    fn a_leader_is_shown_with_its_place_and_its_state() {
        let with = |state: &str, ago_seconds| {
            let instance =
                LeaderInstance { host: "web-1".to_owned(), pid: 42, state: state.to_owned() };
            let leader = LeaderStatus { token: "ab".to_owned(), instance: Some(instance) };
            let last_seen = LastSeen { ago_seconds: Some(ago_seconds), at_ms: 1 };
            ConsumerStatus { leader: Some(leader), last_seen, ..consumer() }
        };
        let text = consumers_text(&[with("ready", 0.3)], output("table"));
        assert!(text.contains("  ready  ") && text.contains("  web-1:42  "), "{text}");
        assert_eq!(text.lines().count(), 2, "{text}");
        let text = consumers_text(&[with("backend_refuses: since 3 min", 0.3)], output("table"));
        assert!(text.contains("  backend_refuses  "), "{text}");
        assert!(text.ends_with("\nhttp: backend_refuses: since 3 min"), "{text}");
        let text = consumers_text(&[with("ready", 60.0)], output("table"));
        assert!(text.contains("  no leader  ") && text.contains("web-1:42"), "{text}");
    }

    #[test]
    fn a_shop_that_takes_much_is_named() {
        let shares = r#"5 {"waiting":100,"shops":[{"hash":"00000000000000ab","shop":"a.example","waiting":80},{"hash":"00000000000000cd","waiting":19}]}"#;
        let queue = QueueStatus {
            webhooks: 100,
            bytes: 50 << 20,
            limit_bytes: 64 << 20,
            ..QueueStatus::default()
        };
        let consumer = ConsumerStatus {
            notes: LeaderNotes { shares: shares.to_owned(), ..LeaderNotes::default() },
            parked: 0,
            dead: DeadTotals::default(),
            ..consumer()
        };
        let mut status = CellStatus { queue, consumers: vec![consumer], now_ms: 5 };
        assert_eq!(
            shops_text(&status),
            "\nhttp: 80 webhooks of shop a.example take about 40.0 MiB, 62 % of redis' maxmemory\
             \nhttp: 19 webhooks of shop 00000000000000cd take about 9.5 MiB, 14 % of redis' maxmemory"
        );
        status.queue.limit_bytes = 1 << 30;
        assert_eq!(shops_text(&status), "");
        status.queue.limit_bytes = 0;
        assert_eq!(shops_text(&status), "");
    }

    #[test]
    fn nobody_draining_is_said() {
        let idle = ConsumerStatus {
            leader: None,
            last_seen: LastSeen::default(),
            oldest_age_seconds: None,
            ..consumer()
        };
        let text = consumers_text(&[idle], output("table"));
        assert!(text.contains("none") && text.contains("never"), "{text}");
        let filter = Filter { shop: Some("a.example".to_owned()), ..Filter::default() };
        let paused = ConsumerStatus { pauses: vec![Pause { filter, since_ms: 0 }], ..consumer() };
        let text = consumers_text(&[paused], output("table"));
        assert!(text.contains("\nhttp: paused since 1970-01-01"), "{text}");
        assert!(text.contains(": shop a.example"), "{text}");
        assert!(consumers_text(&[], output("table")).contains("no consumer"));
    }
}
