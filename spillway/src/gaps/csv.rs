//! Gaps as comma-separated values (RFC 4180).

use spillway_console::model::gaps::GapLine;
use spillway_webhook::freshness::rfc3339;

use super::lines::cause;
use crate::csv::field;

/// A line with the names of the columns, and one for each gap. An empty shop or topic stands for any.
pub(super) fn text<'a>(gaps: impl IntoIterator<Item = &'a GapLine>) -> String {
    let mut text = "shop,topic,from,to,cause\r\n".to_owned();
    for gap in gaps {
        let times = [rfc3339(gap.from_ms), rfc3339(gap.to_ms)].join(",");
        let [shop, topic] = [&gap.shop, &gap.topic].map(|name| field(name));
        text.push_str(&format!("{shop},{topic},{times},{}\r\n", cause(gap.cause)));
    }
    text
}

#[cfg(test)]
mod tests {
    use spillway_console::model::gaps::GapCause;

    use super::*;

    #[test]
    fn hostile_names_stay_in_their_field() {
        let gap = GapLine {
            shop: "=cmd|'/c calc'!A1".to_owned(),
            topic: "a\",b/c".to_owned(),
            from_ms: 0,
            to_ms: 1000,
            cause: GapCause::Refused,
        };
        let expected = "shop,topic,from,to,cause\r\n'=cmd|'/c calc'!A1,\"a\"\",b/c\",1970-01-01T00:00:00.000Z,1970-01-01T00:00:01.000Z,refused\r\n";
        assert_eq!(text(&[gap]), expected);
    }
}
