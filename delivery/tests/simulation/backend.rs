//! Backends of the simulation: the answers to each lane and resource.

use std::collections::HashMap;
use std::time::Duration;

use spillway_delivery::{Scope, Verdict};
use spillway_limiter::Signal;

use crate::random::Random;
use crate::webhook::{Resource, Webhook};

/// Time after which an attempt times out.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(5);

/// A way to answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Healthy,
    /// Takes seconds for some webhooks.
    Slow,
    /// 500.
    Failing,
    /// No answer.
    Hanging,
    /// 404, retried for a shorter time.
    Refusing,
    /// 400, given up at once.
    Poison,
    /// 503 or 429 with a pause.
    Busy(Option<Scope>),
    /// No connection.
    Unconnected,
}

/// All backends.
#[derive(Debug, Default)]
pub(crate) struct Backends {
    pub all: Option<Mode>,
    pub lanes: HashMap<(u8, u8), Mode>,
    pub resources: HashMap<Resource, Mode>,
}

/// The end of an attempt, decided when it begins.
#[derive(Debug, Clone, Copy)]
pub(crate) struct End {
    pub verdict: Verdict,
    pub signal: Signal,
    pub is_unconnected: bool,
    pub took: Duration,
    /// True if the backend accepts the webhook.
    pub arrives: bool,
}

impl Backends {
    pub(crate) fn mode(&self, webhook: &Webhook) -> Mode {
        let lane = self.lanes.get(&(webhook.shop, webhook.kind));
        let resource = self.resources.get(&webhook.resource());
        self.all.or(resource.copied()).or(lane.copied()).unwrap_or(Mode::Healthy)
    }

    /// A mode other than healthy.
    pub(crate) fn bad_mode(random: &mut Random) -> Mode {
        let scope = random.pick(&[Scope::Resource, Scope::Shop]);
        let bad = [Mode::Slow, Mode::Failing, Mode::Failing, Mode::Hanging, Mode::Refusing];
        let more = [Mode::Poison, Mode::Busy(Some(scope))];
        random.pick(&[&bad[..], &more[..]].concat())
    }

    pub(crate) fn answer(&self, webhook: &Webhook, random: &mut Random) -> End {
        let fail = |pause, scope, is_refusal| Verdict::Retry { pause, scope, is_refusal };
        let retry = fail(Duration::ZERO, None, false);
        let mode = self.mode(webhook);
        let (verdict, signal) = match mode {
            Mode::Healthy | Mode::Slow if random.chance(5) => (Verdict::NotSent, Signal::Broken),
            Mode::Healthy | Mode::Slow => (Verdict::Delivered, Signal::Done),
            Mode::Failing => (retry, Signal::Failed),
            Mode::Hanging => (retry, Signal::TimedOut),
            Mode::Refusing => (fail(Duration::ZERO, None, true), Signal::Done),
            Mode::Poison => (Verdict::Dead { reason: "poison", is_refusal: true }, Signal::Done),
            Mode::Busy(scope) => {
                let pause = random.ms(200, 3000);
                // A narrow pause is no evidence about the backend as a whole.
                (fail(pause, scope, false), Signal::Failed)
            }
            Mode::Unconnected => (retry, Signal::Broken),
        };
        let took = match mode {
            Mode::Hanging => TIMEOUT,
            Mode::Slow if random.chance(300) => random.ms(500, 4500),
            _ => random.ms(2, 60),
        };
        let arrives = match signal {
            Signal::TimedOut => random.chance(300),
            _ => verdict == Verdict::Delivered,
        };
        let is_unconnected = mode == Mode::Unconnected;
        End { verdict, signal, is_unconnected, took, arrives }
    }
}
