//! `spillway queue show`: one waiting webhook, exactly as it was received.

use std::io::Write;
use std::ops::ControlFlow;

use spillway_queue::controls::Filter;
use spillway_webhook::WebhookId;

use crate::audited::{Actor, note_look};
use crate::failure::Failure;
use crate::out::line;
use crate::place::CellArgs;
use crate::walk::{Look, Met, Waiting};
use crate::webhook_text::webhook_text;

/// The body and the text to print.
struct ShownWebhook {
    id: WebhookId,
    body: Vec<u8>,
    text: String,
}

/// Shows the webhook with this Spillway-Id or Shopify webhook id, or writes only its body.
pub(super) async fn run(
    place: &CellArgs,
    consumer: &str,
    id: &str,
    body_only: bool,
) -> Result<(), Failure> {
    let shown = find(place, consumer, id).await?;
    note_look(place, &Actor::of_command(), None, &shown.id).await?;
    if body_only {
        let mut output = std::io::stdout();
        output.write_all(&shown.body)?;
        return Ok(output.flush()?);
    }
    Ok(line(shown.text)?)
}

async fn find(place: &CellArgs, consumer: &str, id: &str) -> Result<ShownWebhook, Failure> {
    let mut waiting = Waiting::for_consumer(place, consumer).await?;
    // It matches either id.
    let filter = Filter { webhook_id: Some(id.to_owned()), ..Filter::default() };
    let wanted = filter.clone();
    let look = move |look: &Look<'_>| {
        look.webhooks().find(|met| met.is_meant(&wanted)).map(|met| ShownWebhook::of(&met))
    };
    let mut found = None;
    let mut take = |shown: Option<ShownWebhook>| match shown {
        None => ControlFlow::Continue(()),
        shown => {
            found = shown;
            ControlFlow::Break(())
        }
    };
    // A Spillway-Id names the pack.
    match id.parse::<WebhookId>() {
        Ok(id) => waiting.pack(id.entry, look.clone(), &mut take).await?,
        Err(_) => waiting.main(look.clone(), &mut take).await?,
    }
    let lanes = waiting.lanes(&filter).await?;
    waiting.aside(&lanes, look, &mut take).await?;
    let nothing = || {
        let hint = "see `spillway explain` for what became of it";
        Failure::Failed(format!("{id} does not wait for {consumer}; {hint}"))
    };
    found.ok_or_else(nothing)
}

impl ShownWebhook {
    fn of(met: &Met<'_>) -> Self {
        let aside = met.aside.map(|aside| aside.to_string());
        let place = aside.unwrap_or_else(|| "the main stream".to_owned());
        Self {
            id: met.id,
            body: met.view.body.to_vec(),
            text: webhook_text(met, ("waits in", place)),
        }
    }
}
