//! A webhook as text for an operator, exactly as it was received.

use spillway_webhook::freshness::rfc3339;

use crate::out::{printable, table};
use crate::walk::Met;

/// Facts about a webhook, then its target, headers and body. `place` is where it was found.
pub(crate) fn webhook_text(met: &Met<'_>, place: (&str, String)) -> String {
    let facts = [
        ("Spillway-Id", met.id.to_string()),
        ("webhook id", met.webhook_id()),
        ("shop", met.shop()),
        ("topic", met.topic()),
        ("resource", met.resource()),
        ("received", rfc3339(met.view.received_at_ms)),
        place,
    ];
    let mut text = table(&["", ""], facts.map(|(name, fact)| [name.to_owned(), fact]));
    text.push_str(&format!("\n\nPOST {}\n", printable(met.view.target)));
    for (name, value) in met.view.headers() {
        text.push_str(&format!("{}: {}\n", printable(name), printable(value)));
    }
    text.push('\n');
    text.push_str(printable(met.view.body).trim_end());
    text.trim_start().to_owned()
}
