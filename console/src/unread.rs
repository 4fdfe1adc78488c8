//! Files that had a mistake from the start on. Until each of them was read once, nothing is served: without its users, a
//! console would know nobody, and without its tokens, a program would be told that its own is wrong.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state, map_response};
use axum::response::Response;

use crate::headers;
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

    /// Logs every problem.
    pub fn log(&self) {
        for (setting, problem) in self.lock().iter() {
            tracing::error!(%problem, "{setting} can't be read: the console answers 503 until it can");
        }
    }

    /// Answers 503 to every request as long as there is one.
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
    match unread.first() {
        None => next.run(request).await,
        Some(setting) => {
            let told = format!("{setting} can't be read: the log of the console says why");
            answer(request.uri(), ProblemDetails::unavailable(told))
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::StatusCode;
    use axum::http::header::{CONTENT_TYPE, X_FRAME_OPTIONS};
    use axum::routing::get;
    use tower::ServiceExt as _;

    use super::*;

    #[tokio::test]
    async fn everything_is_503_until_every_file_was_read() {
        let unread = UnreadFiles::default();
        let router = unread.guard(Router::new().route("/login", get(|| async { "done" })));
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
        assert!(unread.contains("CONSOLE_USERS_FILE"));
        unread.remove("CONSOLE_USERS_FILE");
        assert_eq!(ask("/login").await.status(), StatusCode::OK);
    }
}
