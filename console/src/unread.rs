//! Files that had a mistake from the start on. Until each of them was read once, nothing is served: without its users, a
//! console would know nobody, and without its tokens, a program would be told that its own is wrong.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state, map_response};
use axum::response::{IntoResponse, Response};

use crate::headers;
use crate::probes::{LIVEZ, READYZ};
use crate::problem::ProblemDetails;
use crate::route::answer;

/// Settings whose files were never read, with the problem of each.
#[derive(Debug, Clone, Default)]
pub struct UnreadFiles(Arc<Mutex<BTreeMap<&'static str, String>>>);

impl UnreadFiles {
    /// Notes that the file of a setting can't be read.
    pub fn insert(&self, setting: &'static str, problem: String) {
        self.lock().insert(setting, problem);
    }

    /// Notes that the file of a setting was read.
    pub fn remove(&self, setting: &str) {
        self.lock().remove(setting);
    }

    /// True if the file of a setting was never read.
    pub fn contains(&self, setting: &str) -> bool {
        self.lock().contains_key(setting)
    }

    /// Every problem, with the setting of the file.
    pub fn problems(&self) -> Vec<(&'static str, String)> {
        let problems = self.lock();
        problems.iter().map(|(setting, problem)| (*setting, problem.clone())).collect()
    }

    /// Logs every problem.
    pub fn log(&self) {
        for (setting, problem) in self.lock().iter() {
            tracing::error!(%problem, "{setting} can't be read: the console answers 503 until it can");
        }
    }

    /// Answers 503 to every request as long as there is one. The process is alive all the same.
    pub fn guard(&self, router: Router) -> Router {
        router
            .layer(from_fn_with_state(self.clone(), ensure_read))
            .layer(map_response(headers::secure))
    }

    fn first(&self) -> Option<&'static str> {
        self.lock().keys().next().copied()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn ensure_read(State(unread): State<UnreadFiles>, request: Request, next: Next) -> Response {
    match (unread.first(), request.uri().path()) {
        (None, _) | (_, LIVEZ) => next.run(request).await,
        (Some(setting), READYZ) => {
            let reason = format!("unread_file: {setting} can't be read\n");
            (StatusCode::SERVICE_UNAVAILABLE, reason).into_response()
        }
        (Some(setting), _) => {
            let told = format!("{setting} can't be read: the log of the console says why");
            answer(request.uri(), ProblemDetails::unavailable(told))
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::header::{CONTENT_TYPE, X_FRAME_OPTIONS};
    use axum::routing::get;
    use http_body_util::BodyExt as _;
    use tower::ServiceExt as _;

    use super::*;

    #[tokio::test]
    async fn everything_is_503_until_every_file_was_read() {
        let unread = UnreadFiles::default();
        let done = || get(|| async { "done" });
        let routes = Router::new().route("/login", done()).route(LIVEZ, done());
        let router = unread.guard(routes.route(READYZ, done()));
        let ask = async |path: &str| {
            let request = axum::http::Request::builder().uri(path).body(Body::empty()).unwrap();
            router.clone().oneshot(request).await.unwrap()
        };
        assert_eq!(ask("/login").await.status(), StatusCode::OK);
        unread.insert("CONSOLE_USERS_FILE", "line 1: a secret".to_owned());
        for (path, media_type) in [("/login", "text/html"), ("/api/v1/dead", "application/")] {
            let answer = ask(path).await;
            assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE, "{path}");
            assert_eq!(answer.headers()[X_FRAME_OPTIONS], "DENY");
            let told = answer.headers()[CONTENT_TYPE].to_str().unwrap();
            assert!(told.starts_with(media_type), "{path}: {told}");
        }
        assert_eq!(ask(LIVEZ).await.status(), StatusCode::OK, "a restart would not help");
        let ready = ask(READYZ).await;
        assert_eq!(ready.status(), StatusCode::SERVICE_UNAVAILABLE);
        let reason = ready.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(reason, "unread_file: CONSOLE_USERS_FILE can't be read\n");
        assert!(unread.contains("CONSOLE_USERS_FILE") && unread.problems().len() == 1);
        unread.remove("CONSOLE_USERS_FILE");
        assert_eq!(ask("/login").await.status(), StatusCode::OK);
    }
}
