//! Several apps in one receiver: `APPS_FILE`, a TOML file that names each app's path or host, its
//! secrets, and what it takes.
//!
//! A webhook is for the app whose path and host it was sent to, and only this app's secrets verify it.
//! The app's name is stored with the webhook.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;
use http::header::HOST;
use http::{HeaderMap, HeaderValue, Uri};
use prometheus::{IntCounter, IntCounterVec, Opts, Registry};
use serde::Deserialize;
use spillway_process::Checker;
use spillway_process::reload::FromFiles;
use spillway_process::settings::read_secrets;
use spillway_webhook::received::{APP_HEADER, is_plain_name};
use spillway_webhook::target::{is_path_match, is_path_pattern};
use spillway_webhook::{Secrets, Verified, Webhook};
use zeroize::Zeroizing;

use crate::inspect::{AGE_RANGE, BodyKinds, InspectionRules};
use crate::metrics::add;
use crate::reply::Refusal;
use crate::secrets::verify;

/// Most apps of a file. Each is a value of a label.
const APPS_MAX: usize = 200;

/// An app, and what a webhook for it must fulfil.
pub struct App {
    /// Name, as a header's value.
    pub name: HeaderValue,
    /// Any of them verifies a signature.
    secrets: Secrets,
    /// Rules for its webhooks.
    pub rules: InspectionRules,
    /// A counter for each secret.
    matches: Vec<IntCounter>,
    paths: Vec<String>,
    hosts: Vec<String>,
    /// File of its secrets, if they are in one.
    secret_file: Option<PathBuf>,
}

/// The apps in force, and the file from which they are read again.
pub struct Apps {
    in_force: ArcSwap<Vec<Arc<App>>>,
    settings: AppSettings,
    /// The receiver has secrets of its own, for webhooks that are for none of the apps.
    has_default: bool,
    requests: IntCounterVec,
    matches: IntCounterVec,
}

/// Settings of the apps.
#[derive(Debug, Clone)]
pub struct AppSettings {
    /// The file.
    pub file: PathBuf,
    /// Rules of an app that names none.
    pub rules: InspectionRules,
}

/// The file as written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AppsFile {
    #[serde(default, rename = "app")]
    apps: Vec<WrittenApp>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenApp {
    name: String,
    #[serde(default)]
    paths: Vec<String>,
    #[serde(default)]
    hosts: Vec<String>,
    #[serde(default)]
    secrets: Vec<Zeroizing<String>>,
    secret_file: Option<PathBuf>,
    body_kinds: Option<String>,
    max_event_age: Option<String>,
}

impl Apps {
    /// Reads the apps. `has_default`: the receiver has secrets of its own. `matches` counts webhooks
    /// by the secret that signed them.
    ///
    /// # Errors
    /// A sentence that names each mistake in the file.
    pub fn new(
        settings: AppSettings,
        has_default: bool,
        matches: IntCounterVec,
        registry: &Registry,
    ) -> Result<Self, String> {
        let apps = settings.read()?;
        let requests = Opts::new("spillway_app_requests_total", "Requests by app of APPS_FILE.");
        let requests = add(registry, IntCounterVec::new(requests, &["app", "outcome"]));
        let in_force = ArcSwap::from_pointee(counted(apps, &requests, &matches));
        Ok(Self { in_force, settings, has_default, requests, matches })
    }

    /// App that a request with this head is for: the one with the exact path, else the longest
    /// prefix, and among these the one that names the host. `None` if the receiver's own secrets
    /// verify it.
    ///
    /// # Errors
    /// [`Refusal::UnknownApp`] if it is for no app, and the receiver has no secrets of its own.
    pub fn route(&self, uri: &Uri, headers: &HeaderMap) -> Result<Option<Arc<App>>, Refusal> {
        let path = uri.path();
        let host = host_of(uri, headers);
        let apps = self.in_force.load();
        let fitting = apps.iter().filter_map(|app| Some((app.fit(path, host)?, app)));
        match fitting.max_by_key(|(fit, _)| *fit) {
            Some((_, app)) => Ok(Some(app.clone())),
            None if self.has_default => Ok(None),
            None => Err(Refusal::UnknownApp),
        }
    }

    /// Counts a request for an app.
    pub fn count(&self, app: &App, outcome: &str) {
        let name = app.name.to_str().unwrap_or_default();
        self.requests.with_label_values(&[name, outcome]).inc();
    }
}

impl FromFiles for Apps {
    fn files(&self) -> Vec<PathBuf> {
        let apps = self.in_force.load();
        let secrets = apps.iter().filter_map(|app| app.secret_file.clone());
        std::iter::once(self.settings.file.clone()).chain(secrets).collect()
    }

    fn reload(&self) -> bool {
        match self.settings.read() {
            Ok(apps) => {
                let count = apps.len();
                self.in_force.store(Arc::new(counted(apps, &self.requests, &self.matches)));
                tracing::info!(count, "apps read again");
                true
            }
            Err(problem) => {
                tracing::error!(%problem, "APPS_FILE could not be read again; the old apps stay in force");
                false
            }
        }
    }
}

fn counted(apps: Vec<App>, requests: &IntCounterVec, matches: &IntCounterVec) -> Vec<Arc<App>> {
    let counters = |app: &App| {
        // Shown before the first one is counted.
        requests.with_label_values(&[app.name.to_str().unwrap_or_default(), "accepted"]);
        let fingerprints = app.secrets.fingerprints().iter();
        fingerprints.map(|label| matches.with_label_values(&[label])).collect()
    };
    apps.into_iter().map(|app| Arc::new(App { matches: counters(&app), ..app })).collect()
}

impl App {
    /// Checks a webhook with the app's secrets.
    ///
    /// # Errors
    /// [`Refusal::BadSignature`] if none of them made the signature.
    pub async fn verify<'a>(&self, webhook: &'a Webhook) -> Result<Verified<'a>, Refusal> {
        let verified = verify(&self.secrets, webhook).await.map_err(|_| Refusal::BadSignature)?;
        self.matches[verified.secret()].inc();
        Ok(verified)
    }

    /// Rank of the app for a request: exact path, length of the path, named host. `None` if it does
    /// not fit.
    fn fit(&self, path: &str, host: &str) -> Option<(bool, usize, bool)> {
        let names_host = !self.hosts.is_empty();
        if names_host && !self.hosts.iter().any(|one| one.eq_ignore_ascii_case(host)) {
            return None;
        }
        if self.paths.is_empty() {
            // As good as `/*`.
            return Some((false, 1, names_host));
        }
        let fits = self.paths.iter().filter(|one| is_path_match(one, path.as_bytes()));
        let rank = |one: &String| match one.strip_suffix('*') {
            Some(prefix) => (false, prefix.len(), names_host),
            None => (true, one.len(), names_host),
        };
        fits.map(rank).max()
    }
}

/// Host that a request names, without its port.
fn host_of<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> &'a str {
    let named = headers.get(HOST).and_then(|host| host.to_str().ok());
    // The target takes precedence (RFC 9112, section 3.2.2).
    let host = uri.authority().map(http::uri::Authority::as_str).or(named).unwrap_or_default();
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

/// Names the app in the headers, in place of what the sender may have claimed.
pub fn name_app(headers: &mut HeaderMap, app: Option<&App>) {
    match app {
        Some(app) => {
            headers.insert(APP_HEADER, app.name.clone());
        }
        None => {
            headers.remove(APP_HEADER);
        }
    }
}

impl AppSettings {
    /// Reads the file.
    ///
    /// # Errors
    /// A sentence that names each mistake in it.
    pub fn read(&self) -> Result<Vec<App>, String> {
        let file = self.file.display();
        let text = std::fs::read_to_string(&self.file);
        let text = Zeroizing::new(text.map_err(|error| format!("cannot read {file}: {error}"))?);
        let written: AppsFile = toml::from_str(&text).map_err(|error| {
            // Its own text would quote the line, which may hold a secret.
            let line = error.span().map_or(0, |span| text[..span.start].matches('\n').count() + 1);
            let told = error.message();
            let is_telling = told.starts_with("unknown field") || told.starts_with("missing field");
            let problem = if is_telling { told } else { "is not as docs/shopify.md shows" };
            format!("{file}, line {line}: {problem}")
        })?;
        let mut mistakes = FileMistakes::default();
        let mut names = HashSet::new();
        let mut routes = HashSet::new();
        if written.apps.is_empty() || written.apps.len() > APPS_MAX {
            mistakes.found.push(format!("it must hold 1 to {APPS_MAX} [[app]]"));
        }
        let mut apps = Vec::new();
        for app in written.apps {
            mistakes.of.clone_from(&app.name);
            if !names.insert(app.name.clone()) {
                mistakes.note("is there twice");
            }
            let app = app.checked(self.rules, &mut mistakes);
            for (host, path) in app.routes() {
                if !routes.insert((host.clone(), path.clone())) {
                    mistakes.note(&format!("shares {host}{path} with another app"));
                }
            }
            apps.push(app);
        }
        let found = mistakes.found;
        if found.is_empty() { Ok(apps) } else { Err(format!("{file}: {}", found.join("; "))) }
    }
}

/// Mistakes in the file, each with the app's name.
#[derive(Default)]
struct FileMistakes {
    of: String,
    found: Vec<String>,
    /// Secrets of the apps that were looked at.
    secrets: Vec<Zeroizing<String>>,
}

impl FileMistakes {
    fn note(&mut self, mistake: &str) {
        self.found.push(format!("app {:?} {mistake}", self.of));
    }
}

impl App {
    /// Pairs of host and path, each of which only one app may have.
    fn routes(&self) -> Vec<(String, String)> {
        let any = [String::new()];
        let hosts = if self.hosts.is_empty() { &any[..] } else { &self.hosts };
        let mut paths = self.paths.clone();
        if paths.is_empty() {
            paths.push("/*".to_owned());
        }
        let pairs = hosts.iter().flat_map(|host| paths.iter().map(move |path| (host, path)));
        pairs.map(|(host, path)| (host.to_ascii_lowercase(), path.clone())).collect()
    }
}

impl WrittenApp {
    fn checked(self, mut rules: InspectionRules, mistakes: &mut FileMistakes) -> App {
        if !is_plain_name(&self.name) {
            mistakes.note("must have a name of 1 to 64 letters, digits, -, _ or .");
        }
        if self.paths.is_empty() && self.hosts.is_empty() {
            mistakes.note("needs paths or hosts");
        }
        let mut paths = Vec::new();
        for path in &self.paths {
            if is_path_pattern(path) {
                paths.push(path.clone());
            } else {
                mistakes.note(&format!("has {path:?}, no path such as /hooks or /hooks/*"));
            }
        }
        for host in self.hosts.iter().filter(|host| host.contains([':', '/', '*', ' '])) {
            mistakes.note(&format!("has {host:?}, no host such as hooks.example, without a port"));
        }
        let mut checker = Checker::default();
        if let Some(kinds) = &self.body_kinds {
            rules.body_kinds = BodyKinds::check(&mut checker, "body_kinds", kinds);
        }
        if let Some(age) = &self.max_event_age {
            rules.window.age_max = checker.duration("max_event_age", age, AGE_RANGE);
        }
        if let Err(found) = checker.finish(()) {
            mistakes.note(&format!("has {}", found.to_string().replace('\n', "; ")));
        }
        let secrets = self.secrets(mistakes);
        if secrets.iter().any(|secret| mistakes.secrets.contains(secret)) {
            mistakes.note("has a secret of another app, whose webhooks it would take for its own");
        }
        mistakes.secrets.extend_from_slice(&secrets);
        App {
            name: HeaderValue::from_str(&self.name).unwrap_or(HeaderValue::from_static("")),
            secrets: Secrets::new(&secrets),
            rules,
            matches: Vec::new(),
            paths,
            hosts: self.hosts,
            secret_file: self.secret_file,
        }
    }

    fn secrets(&self, mistakes: &mut FileMistakes) -> Vec<Zeroizing<String>> {
        let secrets = match (&self.secret_file, &self.secrets[..]) {
            (Some(file), []) => read_secrets(file),
            (None, secrets) if secrets.iter().any(|secret| !secret.trim().is_empty()) => {
                let trimmed = secrets.iter().map(|secret| Zeroizing::new(secret.trim().to_owned()));
                Ok(trimmed.filter(|secret| !secret.is_empty()).collect())
            }
            _ => Err("needs either secrets or secret_file".to_owned()),
        };
        secrets.unwrap_or_else(|problem| {
            mistakes.note(&problem);
            Vec::new()
        })
    }
}

#[cfg(test)]
mod tests;
