//! The demo backend, told to fail from the page. Only in a cell of `spillway dev`.

use std::env;

use axum::extract::{Query, State};
use axum::response::{IntoResponse, Redirect, Response};
use axum::{Extension, Form};
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::Full;
use spillway_console::pages::demo::page;
use spillway_console::pages::frame::offer_demo;
use spillway_console::pages::problem::PageProblem;
use spillway_console::{Caller, ConsoleRoute, Permission, ProblemDetails};

use crate::console::state::ConsoleState;
use crate::dev::CONTROL_URL;
use crate::http::{HttpAnswer, HttpClient};
use crate::out::printable;

/// Routes of this area.
pub(in crate::console) fn routes() -> Vec<ConsoleRoute<ConsoleState>> {
    if control_url().is_ok() {
        offer_demo();
    }
    vec![
        ConsoleRoute::read("/demo", Permission::Operate, show),
        ConsoleRoute::change("/demo", Permission::Operate, tell),
    ]
}

/// Fields of a query or a form.
type DemoFields = Vec<(String, String)>;

async fn show(
    State(_): State<ConsoleState>,
    Extension(caller): Extension<Caller>,
    Query(query): Query<DemoFields>,
) -> Result<Response, PageProblem> {
    let answer = HttpClient::plain().get(&control_url()?).await;
    let mode = answered(answer)?;
    Ok(page(&caller, &mode, field(&query, "told").is_some()).into_response())
}

async fn tell(
    State(_): State<ConsoleState>,
    Form(form): Form<DemoFields>,
) -> Result<Response, PageProblem> {
    let url = control_url()?;
    // The backend is to answer in another way, or samples are to be sent.
    let orders =
        ["mode", "send"].map(|name| field(&form, name).map(|value| format!("{name} {value}")));
    for order in orders.into_iter().flatten() {
        let request = Request::post(&url).body(Full::new(Bytes::from(order)));
        let request = request.map_err(|error| ProblemDetails::unavailable(error.to_string()))?;
        answered(HttpClient::plain().send(request).await)?;
    }
    Ok(Redirect::to("/demo?told=1").into_response())
}

/// Value of a field that is filled in.
fn field<'a>(fields: &'a [(String, String)], name: &str) -> Option<&'a str> {
    let found = fields.iter().find(|(field, value)| field == name && !value.is_empty());
    found.map(|(_, value)| value.as_str())
}

/// URL at which the demo backend takes orders. `spillway dev` sets it.
fn control_url() -> Result<String, ProblemDetails> {
    let url = env::var(CONTROL_URL).ok().filter(|url| !url.is_empty());
    url.ok_or_else(|| {
        ProblemDetails::not_found("this cell has no demo backend: `spillway dev` starts one")
    })
}

/// Text of an answer of the demo backend.
fn answered(answer: Result<HttpAnswer, String>) -> Result<String, ProblemDetails> {
    let unavailable = |problem| ProblemDetails::unavailable(format!("the demo backend: {problem}"));
    let answer = answer.map_err(unavailable)?;
    let text = printable(&answer.body);
    match answer.status {
        StatusCode::OK => Ok(text),
        StatusCode::BAD_REQUEST => Err(ProblemDetails::bad_request(text)),
        status => Err(ProblemDetails::unavailable(format!("the demo backend answered {status}"))),
    }
}
