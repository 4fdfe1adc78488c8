//! Plots of the last hours. A script draws them from `/api/v1/metrics`; without it, there are tables.

use maud::{Markup, html};

use super::figures::{moment, value};
use super::parts::{TableColumn, table};
use crate::model::history::{MetricHistory, MetricSeries, MetricSource};

/// Most rows of a table of values. The plot shows all of them.
const ROWS_MAX: usize = 12;

/// A plot: its id, its title, and the names of its series.
struct ChartPlan {
    id: &'static str,
    title: &'static str,
    names: &'static [&'static str],
}

/// Plots in their order. A series that none of them names is in the last one of its unit.
const CHARTS: [ChartPlan; 8] = [
    ChartPlan {
        id: "flow",
        title: "Accepted and settled per second",
        names: &["accepted_per_second", "settled_per_second"],
    },
    ChartPlan {
        id: "latency",
        title: "End to end: p50 and p99",
        names: &["p50_seconds", "p99_seconds"],
    },
    ChartPlan { id: "backlog", title: "Waiting webhooks", names: &["waiting", "in_lanes"] },
    ChartPlan { id: "age", title: "Age of the oldest, or lag", names: &["oldest_seconds"] },
    ChartPlan {
        id: "concurrency",
        title: "Concurrency and its limit",
        names: &["concurrency", "concurrency_limit"],
    },
    ChartPlan { id: "blocked", title: "Lanes of which nothing is sent", names: &["lanes_blocked"] },
    ChartPlan { id: "dead", title: "Dead letters", names: &["dead_letters"] },
    ChartPlan { id: "overflow", title: "Webhooks on disk (overflow)", names: &["spilled"] },
];

/// Section with all plots of a history.
pub(super) fn section(history: &MetricHistory) -> Markup {
    let known = |name: &str| CHARTS.iter().any(|chart| chart.names.contains(&name));
    let mut others: Vec<&MetricSeries> =
        history.series.iter().filter(|series| !known(&series.name)).collect();
    others.sort_by(|one, other| one.name.cmp(&other.name));
    html! {
        section aria-labelledby="history" {
            h2 #history { "Last hours" }
            (windows(history))
            @if let Some(problem) = &history.problem {
                p.notice { (problem) ". Until it is read again, these are the values in memory." }
            }
            div.charts {
                @for plan in &CHARTS {
                    @let series: Vec<_> = history
                        .series
                        .iter()
                        .filter(|series| plan.names.contains(&series.name.as_str()))
                        .collect();
                    // Numbers above link to these, with or without values.
                    @if !series.is_empty() || ["flow", "latency", "concurrency"].contains(&plan.id) {
                        (chart(plan.id, plan.title, history, &series))
                    }
                }
                @for (place, series) in others.iter().enumerate() {
                    (chart(&format!("more-{place}"), &title(&series.name), history, &[*series]))
                }
            }
        }
    }
}

/// Links to the windows that there are, and the source of the values.
fn windows(history: &MetricHistory) -> Markup {
    let has_prometheus = history.source == MetricSource::Prometheus || history.problem.is_some();
    html! {
        p.quiet {
            "Show " a href="/?hours=1#history" { "1 hour" } ", "
            a href="/?hours=3#history" { "3 hours" }
            @if has_prometheus {
                ", " a href="/?hours=6#history" { "6 hours" } ", "
                a href="/?hours=24#history" { "1 day" } " or "
                a href="/?hours=168#history" { "1 week" }
            } @else {
                " or " a href="/?hours=6#history" { "6 hours" }
            }
            @match history.source {
                MetricSource::Prometheus => { ". From Prometheus." },
                MetricSource::Memory => { ". The console keeps 6 hours in memory, and begins again when it is started." },
            }
        }
    }
}

fn chart(id: &str, title: &str, history: &MetricHistory, series: &[&MetricSeries]) -> Markup {
    let mut names: Vec<&str> = series.iter().map(|series| series.name.as_str()).collect();
    names.dedup();
    let unit = series.first().map_or("count", |series| series.unit.as_str());
    html! {
        figure.chart #(id) {
            figcaption { (title) }
            @if series.is_empty() {
                p.quiet { "Nothing is known yet. The first values come within a minute." }
            } @else {
                dl.latest {
                    @for series in series {
                        div {
                            dt { (legend(series)) }
                            dd { (value(series.values.iter().rev().copied().flatten().next(), unit)) }
                        }
                    }
                }
                div.plot data-plot=(names.join(" ")) data-unit=(unit) aria-hidden="true" {}
                details {
                    summary { "As a table" }
                    (numbers(title, history, series))
                }
            }
        }
    }
}

/// Values at some of the times, newest first.
fn numbers(title: &str, history: &MetricHistory, series: &[&MetricSeries]) -> Markup {
    let legends: Vec<String> = series.iter().map(|series| legend(series)).collect();
    let mut columns = vec![TableColumn::text("Time in UTC")];
    columns.extend(legends.iter().map(|legend| TableColumn::number(legend)));
    let step = history.at_ms.len().div_ceil(ROWS_MAX).max(1);
    let times = history.at_ms.iter().enumerate().rev().step_by(step);
    let rows: Vec<_> = times
        .map(|(place, at_ms)| {
            let of = |series: &&MetricSeries| {
                let known = series.values.get(place).copied().flatten();
                html! { (value(known, &series.unit)) }
            };
            [moment(*at_ms)].into_iter().chain(series.iter().map(of)).collect::<Vec<_>>()
        })
        .collect();
    table(title, &columns, &rows)
}

/// Name of a series with its consumer.
fn legend(series: &MetricSeries) -> String {
    match series.consumer.as_str() {
        "" => title(&series.name),
        consumer => format!("{} ({consumer})", title(&series.name)),
    }
}

/// A name such as `archive_lag_seconds` as words.
fn title(name: &str) -> String {
    let words = name.strip_suffix("_seconds").unwrap_or(name).replace('_', " ");
    let mut letters = words.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string());
    first.unwrap_or_default() + letters.as_str()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(name: &str, consumer: &str, values: &[Option<f64>]) -> MetricSeries {
        let unit = "seconds".to_owned();
        let values = values.to_vec();
        MetricSeries { name: name.to_owned(), consumer: consumer.to_owned(), unit, values }
    }

    #[test]
    fn a_plot_has_a_table_with_the_latest_value() {
        let history = MetricHistory {
            at_ms: vec![1_767_268_800_000, 1_767_268_810_000],
            series: vec![
                series("p99_seconds", "http", &[Some(2.0), None]),
                series("archive_lag_seconds", "", &[Some(4.0), Some(5.0)]),
            ],
            ..MetricHistory::default()
        };
        let text = section(&history).into_string();
        for shown in ["P99 (http)", "2.0 s", "Archive lag", "2026-01-01 12:00:10", "id=\"flow\""] {
            assert!(text.contains(shown), "{shown} is missing: {text}");
        }
        assert!(text.contains(r#"data-plot="p99_seconds""#), "{text}");
    }

    #[test]
    fn the_source_and_its_problem_are_named() {
        let memory = MetricHistory::default();
        let text = section(&memory).into_string();
        assert!(text.contains("hours in memory") && !text.contains("1 week"), "{text}");
        let problem = Some("Prometheus at http://a answers 500: <b>".to_owned());
        let text = section(&MetricHistory { problem, ..memory.clone() }).into_string();
        for shown in ["answers 500: &lt;b&gt;. Until", "hours in memory", "/?hours=168#history"] {
            assert!(text.contains(shown), "{shown} is missing: {text}");
        }
        let prometheus = MetricHistory { source: MetricSource::Prometheus, ..memory };
        let text = section(&prometheus).into_string();
        assert!(text.contains("From Prometheus") && !text.contains("notice"), "{text}");
    }

    #[test]
    fn a_long_history_is_a_short_table() {
        let at_ms: Vec<u64> = (0..2_160).map(|step| 1_767_268_800_000 + step * 10_000).collect();
        let values = vec![Some(1.0); at_ms.len()];
        let series = vec![series("waiting", "", &values)];
        let history = MetricHistory { at_ms, series, ..MetricHistory::default() };
        assert!(section(&history).into_string().matches("<tr").count() <= ROWS_MAX + 1);
    }
}
