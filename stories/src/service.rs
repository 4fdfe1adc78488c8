//! One of our servers: a process with an admin address and, for the receiver, a listen address.

use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use crate::answer::Answer;
use crate::client::get;
use crate::process::Process;
use crate::until::until;

/// Time within which a server becomes ready, even on a busy machine.
const READY_WITHIN: Duration = Duration::from_secs(20);

/// A started server. Signals and restarts are those of [`Process`].
#[derive(Debug)]
pub struct Service {
    process: Process,
    admin: SocketAddr,
    listen: Option<SocketAddr>,
}

impl Service {
    pub(crate) fn new(process: Process, admin: SocketAddr, listen: Option<SocketAddr>) -> Self {
        Self { process, admin, listen }
    }

    /// Address on which the receiver accepts webhooks.
    pub fn address(&self) -> SocketAddr {
        self.listen.expect("only the receiver takes webhooks")
    }

    /// Address of the admin endpoint.
    pub fn admin_address(&self) -> SocketAddr {
        self.admin
    }

    /// Requests a page of the admin endpoint; `None` if nothing listens.
    pub async fn admin(&self, path: &str) -> Option<Answer> {
        get(self.admin, path).await.ok()
    }

    /// True if `/readyz` answers 200.
    pub async fn is_ready(&self) -> bool {
        self.admin("/readyz").await.is_some_and(|answer| answer.status == 200)
    }

    /// Waits until `/readyz` answers 200.
    pub async fn ready(&self) {
        until(&format!("{} is ready", self.name()), READY_WITHIN, async || self.is_ready().await)
            .await;
    }

    /// Waits until `/readyz` answers 503 with a body that contains `reason`.
    pub async fn unready(&self, reason: &str) {
        let what = format!("{} is not ready because of {reason:?}", self.name());
        until(&what, READY_WITHIN, async || {
            let answer = self.admin("/readyz").await;
            answer.is_some_and(|answer| answer.status == 503 && answer.text().contains(reason))
        })
        .await;
    }

    /// Sum of a metric over its labels; `None` if it is not shown.
    pub async fn metric(&self, name: &str) -> Option<f64> {
        let page = self.admin("/metrics").await?.text();
        let mut values = page.lines().filter_map(|line| sample(line, name)).peekable();
        values.peek()?;
        Some(values.sum())
    }

    /// True if it reports that it leads.
    pub async fn is_leader(&self) -> bool {
        self.metric("spillway_leader").await == Some(1.0)
    }

    /// Waits until it is ready and leads.
    pub async fn leads(&self) {
        let leads = async || self.is_ready().await && self.is_leader().await;
        until("it is ready and leads", Duration::from_secs(60), leads).await;
    }
}

/// Value of a line `name{labels} value` with exactly this name.
pub(crate) fn sample(line: &str, name: &str) -> Option<f64> {
    let rest = line.strip_prefix(name)?;
    if !rest.starts_with(['{', ' ']) {
        return None;
    }
    rest.rsplit(' ').next()?.parse().ok()
}

impl Deref for Service {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

impl DerefMut for Service {
    fn deref_mut(&mut self) -> &mut Process {
        &mut self.process
    }
}

#[cfg(test)]
mod tests {
    use super::sample;

    #[test]
    fn a_sample_is_found_by_its_whole_name() {
        assert_eq!(sample("spillway_leader 1", "spillway_leader"), Some(1.0));
        assert_eq!(sample("a_total{x=\"y z\"} 2.5", "a_total"), Some(2.5));
        assert_eq!(sample("a_total_seconds 2", "a_total"), None);
        assert_eq!(sample("# HELP a_total 3", "a_total"), None);
    }
}
