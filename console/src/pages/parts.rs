//! Parts that several pages have in common: tables, states, figures, fields, and the link to the next page.

use maud::{Markup, html};

use super::links::with_query;

/// Column of a table.
#[derive(Clone, Copy)]
pub(super) struct TableColumn<'a> {
    name: &'a str,
    is_number: bool,
}

/// Severity of a state. Each has a word or a mark beside its colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum StateLevel {
    Ok,
    Warning,
    Bad,
}

impl<'a> TableColumn<'a> {
    /// A column of texts.
    pub(super) const fn text(name: &'a str) -> Self {
        Self { name, is_number: false }
    }

    /// A column of numbers.
    pub(super) const fn number(name: &'a str) -> Self {
        Self { name, is_number: true }
    }
}

impl StateLevel {
    fn class(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Bad => "bad",
        }
    }
}

/// A table. The first cell of each row is its header. On a narrow screen, a row becomes a block whose cells are named by
/// their columns; the roles keep it a table for a screen reader then.
pub(super) fn table(caption: &str, columns: &[TableColumn<'_>], rows: &[Vec<Markup>]) -> Markup {
    table_with(caption, columns, rows, None)
}

/// The table of a list with pages. There is one on a page, and [`pager`] adds rows to it.
pub(super) fn list(caption: &str, columns: &[TableColumn<'_>], rows: &[Vec<Markup>]) -> Markup {
    table_with(caption, columns, rows, Some("rows"))
}

fn table_with(
    caption: &str,
    columns: &[TableColumn<'_>],
    rows: &[Vec<Markup>],
    id: Option<&str>,
) -> Markup {
    html! {
        table role="table" {
            caption { (caption) }
            thead role="rowgroup" {
                tr role="row" {
                    @for column in columns {
                        th.number[column.is_number] role="columnheader" scope="col" { (column.name) }
                    }
                }
            }
            tbody id=[id] role="rowgroup" {
                @for row in rows {
                    tr role="row" {
                        @for (place, (cell, column)) in row.iter().zip(columns).enumerate() {
                            @if place == 0 {
                                th role="rowheader" scope="row" { (cell) }
                            } @else {
                                td.number[column.is_number] role="cell" data-label=(column.name) {
                                    span { (cell) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// A state as a word with a mark and a colour.
pub(super) fn state(level: StateLevel, word: &str) -> Markup {
    html! { span class={ "state " (level.class()) } { (word) } }
}

/// A number with its label, which links to the things that it counts. `plot` names a series to draw below it.
pub(super) fn figure(label: &str, number: &str, href: &str, plot: Option<&str>) -> Markup {
    html! {
        div {
            dt { (label) }
            dd {
                a.value href=(href) { (number) }
                @if let Some(series) = plot {
                    div.spark data-spark=(series) aria-hidden="true" {}
                }
            }
        }
    }
}

/// Text field with its label. The field's id is its name, after `form`.
pub(super) fn field(
    form: &str,
    name: &str,
    label: &str,
    value: Option<&str>,
    hint: &str,
) -> Markup {
    let id = format!("{form}-{name}");
    html! {
        div.field {
            label for=(id) { (label) }
            input #(id) name=(name) value=(value.unwrap_or_default()) placeholder=(hint)
                autocomplete="off" spellcheck="false";
        }
    }
}

/// Hidden field, where there is a value.
pub(super) fn hidden(name: &str, value: Option<&str>) -> Markup {
    html! {
        @if let Some(value) = value { input type="hidden" name=(name) value=(value); }
    }
}

/// Link to the next page of a list. With scripts, the rows are added below, and a search that found
/// nothing so far goes on by itself.
pub(super) fn pager<Q: serde::Serialize>(
    path: &str,
    query: &Q,
    next: Option<&str>,
    is_empty: bool,
) -> Markup {
    let href = |next: &str| with_query(path, query, &[("after", next)]);
    let trigger = if is_empty { "load, click" } else { "click" };
    html! {
        div #pager {
            @if let Some(next) = next {
                @if is_empty { p { "Nothing was found so far. The search is not complete." } }
                a #more.button href=(href(next)) hx-get=(href(next)) hx-trigger=(trigger)
                    hx-target="#rows" hx-select="#rows > tr" hx-swap="beforeend"
                    hx-select-oob="#pager" { (if is_empty { "Search on" } else { "More" }) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::dead::DeadQuery;

    #[test]
    fn a_cell_names_its_column_and_is_escaped() {
        let columns = [TableColumn::text("Shop"), TableColumn::number("Waiting")];
        let row = vec![html! { "<b>" }, html! { "7" }];
        let text = table("Shops <x>", &columns, &[row]).into_string();
        assert!(text.contains(r#"<th role="rowheader" scope="row">&lt;b&gt;</th>"#), "{text}");
        assert!(text.contains(r#"<td class="number" role="cell" data-label="Waiting">"#), "{text}");
        assert!(text.contains("<caption>Shops &lt;x&gt;</caption>"), "{text}");
    }

    #[test]
    fn a_search_without_finds_goes_on_and_the_end_has_no_link() {
        let query = DeadQuery { shop: Some("a&b".to_owned()), ..DeadQuery::default() };
        let text = pager("/dead", &query, Some("1-0"), true).into_string();
        assert!(text.contains(r#"href="/dead?shop=a%26b&amp;after=1-0""#), "{text}");
        assert!(text.contains(r#"hx-trigger="load, click""#), "{text}");
        assert!(!pager("/dead", &query, None, false).into_string().contains("<a"));
    }
}
