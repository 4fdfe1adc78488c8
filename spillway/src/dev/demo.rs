//! Modes of the demo backend, and the orders by which the console's page changes them.

use std::str::FromStr;
use std::time::Duration;

use bytes::Bytes;
use http::{StatusCode, Uri};
use spillway_webhook::Secrets;

use crate::failure::Failure;
use crate::http::HttpClient;
use crate::send::webhook::{Occasion, SampleWebhook};

/// Shop whose deliveries fail in [`DemoMode::FailOneShop`].
const FAILING_SHOP: &str = "failing.myshopify.com";
/// Shops of the samples that are sent.
const SHOPS: [&str; 3] = ["example.myshopify.com", "snow.myshopify.com", FAILING_SHOP];
/// Most samples of one order.
const SENT_MAX: u32 = 1000;
/// Time for which a slow backend waits.
const SLOW: Duration = Duration::from_secs(2);

/// Way in which the demo backend answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum DemoMode {
    /// 200.
    #[default]
    Accept,
    /// 500.
    Fail,
    /// 429 with `Retry-After`.
    Busy,
    /// 200, after some seconds.
    Slow,
    /// 422, which makes a dead letter at once.
    Refuse,
    /// 500 for one shop, 200 for the others.
    FailOneShop,
}

/// Order of the console's page.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum DemoOrder {
    /// Answer in this way from now on.
    Answer(DemoMode),
    /// Send so many samples of several shops to the receiver.
    Send(u32),
}

/// Sends samples to the receiver.
pub(super) struct DemoSender {
    url: Uri,
    secrets: Secrets,
    client: HttpClient,
}

impl DemoMode {
    const ALL: [Self; 6] =
        [Self::Accept, Self::Fail, Self::Busy, Self::Slow, Self::Refuse, Self::FailOneShop];

    /// Name in orders and on the page.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Accept => "ok",
            Self::Fail => "500",
            Self::Busy => "429",
            Self::Slow => "slow",
            Self::Refuse => "422",
            Self::FailOneShop => "one_shop",
        }
    }

    /// Status of the answer to a delivery of this shop, and the time before it.
    pub(super) fn answer(self, shop: &[u8]) -> (StatusCode, Duration) {
        let is_failing_shop = shop == FAILING_SHOP.as_bytes();
        match self {
            Self::Fail => (StatusCode::INTERNAL_SERVER_ERROR, Duration::ZERO),
            Self::FailOneShop if is_failing_shop => {
                (StatusCode::INTERNAL_SERVER_ERROR, Duration::ZERO)
            }
            Self::Busy => (StatusCode::TOO_MANY_REQUESTS, Duration::ZERO),
            Self::Slow => (StatusCode::OK, SLOW),
            Self::Refuse => (StatusCode::UNPROCESSABLE_ENTITY, Duration::ZERO),
            Self::Accept | Self::FailOneShop => (StatusCode::OK, Duration::ZERO),
        }
    }
}

impl FromStr for DemoOrder {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no order such as `mode 500` or `send 20`");
        let (verb, value) = text.trim().split_once(' ').ok_or_else(wrong)?;
        match verb {
            "mode" => {
                let mode = DemoMode::ALL.into_iter().find(|mode| mode.name() == value);
                mode.map(Self::Answer).ok_or_else(wrong)
            }
            "send" => {
                let count =
                    value.parse::<u32>().ok().filter(|count| (1..=SENT_MAX).contains(count));
                count.map(Self::Send).ok_or_else(wrong)
            }
            _ => Err(wrong()),
        }
    }
}

impl DemoSender {
    /// A sender to this receiver.
    pub(super) fn new(url: &str, secrets: Secrets) -> Self {
        let url = url.parse().expect("BUG: a URL made of an address");
        Self { url, secrets, client: HttpClient::plain() }
    }

    /// Sends samples, one after the other. Those that are not answered 200 end it.
    pub(super) async fn send(&self, count: u32) -> Result<(), Failure> {
        for (number, shop) in (1..=count).zip(SHOPS.into_iter().cycle()) {
            let body = Bytes::from(format!(r#"{{"id":{number},"title":"Snowboard {number}"}}"#));
            let webhook = SampleWebhook::classic("products/update", shop, body, &self.secrets)?;
            let request = webhook.request_of(&self.url, &Occasion::new());
            let answer = self.client.send(request).await.map_err(Failure::Failed)?;
            if answer.status != StatusCode::OK {
                let text = format!("the receiver answered a sample {}", answer.status);
                return Err(Failure::Failed(text));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_read_and_others_are_refused() {
        for mode in DemoMode::ALL {
            let order = format!("mode {}", mode.name());
            assert_eq!(order.parse(), Ok(DemoOrder::Answer(mode)));
        }
        assert_eq!("send 20\n".parse(), Ok(DemoOrder::Send(20)));
        for wrong in ["", "mode", "mode fast", "send 0", "send 1001", "send x", "stop now"] {
            assert!(wrong.parse::<DemoOrder>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn one_shop_fails_while_others_are_delivered() {
        let status = |mode: DemoMode, shop: &str| mode.answer(shop.as_bytes()).0.as_u16();
        let statuses = SHOPS.map(|shop| status(DemoMode::FailOneShop, shop));
        assert_eq!(statuses, [200, 200, 500]);
        assert_eq!(SHOPS.map(|shop| status(DemoMode::Refuse, shop)), [422; 3]);
    }
}
