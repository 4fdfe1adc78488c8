//! Arguments of the pages' handlers. A request that is not understood is answered with a page.

use axum::extract::{Form, FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::forms::IDS;
use super::links::without_blanks;
use super::problem::PageProblem;
use crate::problem::ProblemDetails;

/// Query of a page, without the fields that nobody filled in.
#[derive(Debug, Clone)]
pub struct PageQuery<Q>(pub Q);

/// Parameters of a page's path.
#[derive(Debug, Clone)]
pub struct PagePath<P>(pub P);

/// Fields of a form, without those that nobody filled in. All of them are texts.
#[derive(Debug, Clone)]
pub struct PageForm<F>(pub F);

impl<Q, S> FromRequestParts<S> for PageQuery<Q>
where
    Q: Serialize + DeserializeOwned,
    S: Send + Sync,
{
    type Rejection = PageProblem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, PageProblem> {
        match Query::<Q>::from_request_parts(parts, state).await {
            Ok(Query(query)) => Ok(Self(without_blanks(query))),
            Err(rejection) => Err(not_understood(rejection.body_text())),
        }
    }
}

impl<P, S> FromRequestParts<S> for PagePath<P>
where
    P: DeserializeOwned + Send,
    S: Send + Sync,
{
    type Rejection = PageProblem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, PageProblem> {
        match Path::<P>::from_request_parts(parts, state).await {
            Ok(Path(path)) => Ok(Self(path)),
            Err(rejection) => Err(not_understood(rejection.body_text())),
        }
    }
}

impl<F, S> FromRequest<S> for PageForm<F>
where
    F: Serialize + DeserializeOwned,
    S: Send + Sync,
{
    type Rejection = PageProblem;

    async fn from_request(request: Request, state: &S) -> Result<Self, PageProblem> {
        match Form::<Vec<(String, String)>>::from_request(request, state).await {
            Ok(Form(fields)) => Ok(Self(without_blanks(of_fields(fields)?))),
            Err(rejection) => Err(not_understood(rejection.body_text())),
        }
    }
}

/// A form of its fields. Several boxes that are checked send the same name: their values become one, with spaces.
fn of_fields<F: DeserializeOwned>(fields: Vec<(String, String)>) -> Result<F, PageProblem> {
    let mut members = Map::new();
    for (name, value) in fields {
        match members.get_mut(&name) {
            None => {
                members.insert(name, Value::String(value));
            }
            Some(Value::String(known)) if name == IDS => {
                known.push(' ');
                known.push_str(&value);
            }
            Some(_) => return Err(not_understood(format!("the field {name:?} is there twice"))),
        }
    }
    serde_json::from_value(Value::Object(members))
        .map_err(|problem| not_understood(problem.to_string()))
}

fn not_understood(problem: String) -> PageProblem {
    PageProblem(ProblemDetails::bad_request(problem))
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::body::Body;
    use axum::http::StatusCode;
    use axum::http::header::CONTENT_TYPE;
    use axum::routing::{get, post};
    use http_body_util::BodyExt as _;
    use tower::ServiceExt as _;

    use super::*;
    use crate::model::dead::DeadQuery;
    use crate::pages::forms::ChangeForm;

    async fn answer(request: Request) -> (StatusCode, String) {
        let list = |PageQuery(query): PageQuery<DeadQuery>| async move { format!("{query:?}") };
        let change = |PageForm(form): PageForm<ChangeForm>| async move { format!("{form:?}") };
        let job = |PagePath(id): PagePath<u64>| async move { id.to_string() };
        let router = Router::new()
            .route("/dead", get(list))
            .route("/jobs/{id}", get(job))
            .route("/drop", post(change));
        let answer = router.oneshot(request).await.unwrap();
        let status = answer.status();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn blanks_are_left_out_and_nonsense_is_a_page() {
        let get = |path: &str| Request::get(path).body(Body::empty()).unwrap();
        let (status, text) = answer(get("/dead?shop=&topic=orders/create")).await;
        assert_eq!(status, StatusCode::OK);
        assert!(text.contains("shop: None") && text.contains("orders/create"), "{text}");
        for path in ["/dead?limit=x", "/jobs/x"] {
            let (status, text) = answer(get(path)).await;
            assert_eq!(status, StatusCode::BAD_REQUEST);
            assert!(text.contains("<h1") && text.contains("</html>"), "{text}");
        }
        let (status, text) = submitted("csrf=x&shop=a.example&rate=").await;
        assert_eq!(status, StatusCode::OK);
        assert!(text.contains(r#"shop: Some("a.example")"#) && text.contains("rate: None"));
    }

    async fn submitted(fields: &'static str) -> (StatusCode, String) {
        let form = Request::post("/drop")
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(Body::from(fields));
        answer(form.unwrap()).await
    }

    #[tokio::test]
    async fn boxes_that_are_checked_are_one_field_and_no_other_field_comes_twice() {
        let (status, text) = submitted("ids=one&csrf=x&ids=%3Cb%3E&rate=5&ids=three").await;
        assert_eq!(status, StatusCode::OK, "{text}");
        assert!(text.contains(r#"ids: Some("one <b> three")"#), "{text}");
        assert!(text.contains(r#"rate: Some("5")"#), "{text}");
        let (status, text) = submitted("ids=&ids=&csrf=x").await;
        assert!(status == StatusCode::OK && text.contains("ids: None"), "{text}");
        let (status, text) = submitted("shop=a.example&shop=%3Cscript%3E").await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert!(text.contains("there twice") && !text.contains("<script>"), "{text}");
    }
}
