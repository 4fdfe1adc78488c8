//! Parts of a request of the API. One that can't be read is answered with a problem.

use axum::Json;
use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use spillway_console::ProblemDetails;

/// Parameters of the query.
pub(super) struct ApiQuery<T>(pub T);

/// Parameters of the path.
pub(super) struct ApiPath<T>(pub T);

/// Body as JSON.
pub(super) struct ApiJson<T>(pub T);

impl<S: Send + Sync, T> FromRequestParts<S> for ApiQuery<T>
where
    Query<T>: FromRequestParts<S, Rejection = QueryRejection>,
{
    type Rejection = ProblemDetails;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ProblemDetails> {
        match Query::<T>::from_request_parts(parts, state).await {
            Ok(Query(query)) => Ok(Self(query)),
            Err(rejection) => Err(ProblemDetails::bad_request(rejection.body_text())),
        }
    }
}

impl<S: Send + Sync, T> FromRequestParts<S> for ApiPath<T>
where
    Path<T>: FromRequestParts<S, Rejection = PathRejection>,
{
    type Rejection = ProblemDetails;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ProblemDetails> {
        match Path::<T>::from_request_parts(parts, state).await {
            Ok(Path(path)) => Ok(Self(path)),
            // A number that is none names nothing.
            Err(rejection) => Err(ProblemDetails::not_found(rejection.body_text())),
        }
    }
}

impl<S: Send + Sync, T> FromRequest<S> for ApiJson<T>
where
    Json<T>: FromRequest<S, Rejection = JsonRejection>,
{
    type Rejection = ProblemDetails;

    async fn from_request(request: Request, state: &S) -> Result<Self, ProblemDetails> {
        match Json::<T>::from_request(request, state).await {
            Ok(Json(body)) => Ok(Self(body)),
            Err(rejection) => {
                Err(ProblemDetails::new(rejection.status(), "bad_request", rejection.body_text()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::StatusCode;
    use spillway_console::model::change::PauseRequest;
    use spillway_console::model::lanes::LaneQuery;

    use super::*;

    #[tokio::test]
    async fn what_cannot_be_read_is_a_problem() {
        for (query, is_good) in [("limit=7&shop=a", true), ("limit=x", false), ("", true)] {
            let request = Request::get(format!("/?{query}")).body(Body::empty()).unwrap();
            let (mut parts, _) = request.into_parts();
            let read = ApiQuery::<LaneQuery>::from_request_parts(&mut parts, &()).await;
            assert_eq!(read.is_ok(), is_good, "{query}");
        }
        for (body, status) in [
            ("{\"selection\":{\"shop\":\"a\"}}", None),
            ("{\"selection\":{\"shop\":7}}", Some(StatusCode::UNPROCESSABLE_ENTITY)),
            ("{", Some(StatusCode::BAD_REQUEST)),
        ] {
            let request = Request::post("/").header("content-type", "application/json");
            let request = request.body(Body::from(body)).unwrap();
            let read = ApiJson::<PauseRequest>::from_request(request, &()).await;
            assert_eq!(read.err().map(|problem| problem.status()), status, "{body}");
        }
    }
}
