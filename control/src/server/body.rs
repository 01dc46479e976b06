//! Extractors for a request's parts, with their limits, and JSON answers.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::api::{Problem, ProblemKind};
use crate::limits::{BODY_BYTES, BODY_TIME};

/// The bytes of a request's body, within the limits of size and time.
#[derive(Debug)]
pub(super) struct Bytes(pub(super) Vec<u8>);

impl<S: Sync> FromRequest<S> for Bytes {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        read(request.into_body(), BODY_BYTES, BODY_TIME)
            .await
            .map(Self)
    }
}

async fn read(body: Body, limit: usize, time: Duration) -> Result<Vec<u8>, Problem> {
    let all = Limited::new(body, limit).collect();
    match tokio::time::timeout(time, all).await {
        Ok(Ok(all)) => Ok(all.to_bytes().to_vec()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            Err(ProblemKind::TooLarge.with(format!("the body is longer than {limit} bytes")))
        }
        Ok(Err(error)) => {
            Err(ProblemKind::Malformed.with(format!("the body cannot be read: {error}")))
        }
        Err(_) => {
            Err(ProblemKind::TooSlow
                .with(format!("the body did not come within {} s", time.as_secs())))
        }
    }
}

/// A JSON object. Without this type, serde would accept a structure as an array of fields, too, which is not documented.
pub(super) type Object = serde_json::Map<String, serde_json::Value>;

/// Parses a body as `T`.
pub(super) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(bytes).map_err(|error| malformed(&error))
}

/// Deserializes `T` from an object.
pub(super) fn object<T: DeserializeOwned>(object: Object) -> Result<T, Problem> {
    serde_json::from_value(object.into()).map_err(|error| malformed(&error))
}

fn malformed(error: &serde_json::Error) -> Problem {
    ProblemKind::Malformed.with(format!("the body is not what it should be: {error}"))
}

/// A request's body: a JSON object.
#[derive(Debug)]
pub(super) struct JsonBody<T>(pub(super) T);

impl<S: Sync, T: DeserializeOwned> FromRequest<S> for JsonBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let bytes = Bytes::from_request(request, state).await?;
        object(parse(&bytes.0)?).map(Self)
    }
}

/// The part of the path with a probe's number or name.
#[derive(Debug)]
pub(super) struct Named(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for Named {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        Path::from_request_parts(parts, state)
            .await
            .map(|Path(named)| Self(named))
            .map_err(|error| {
                ProblemKind::Malformed.with(format!(
                    "the path is not what it should be: {}",
                    error.body_text()
                ))
            })
    }
}

/// The query: the part of the address after the question mark.
#[derive(Debug)]
pub(super) struct QueryParams<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for QueryParams<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        Query::try_from_uri(&parts.uri)
            .map(|Query(query)| Self(query))
            .map_err(|error| {
                ProblemKind::Malformed.with(format!(
                    "the query is not what it should be: {}",
                    error.body_text()
                ))
            })
    }
}

/// A JSON answer. Ends with a newline for readers on a terminal.
pub(super) fn json<T: Serialize>(status: StatusCode, kind: &'static str, value: &T) -> Response {
    match serde_json::to_vec(value) {
        Ok(mut bytes) => {
            bytes.push(b'\n');
            let mut response = (status, bytes).into_response();
            response
                .headers_mut()
                .insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
            response
        }
        Err(error) => {
            tracing::error!(%error, "an answer cannot be written");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

/// A JSON answer with status 200.
#[derive(Debug)]
pub(super) struct JsonResponse<T>(pub(super) T);

impl<T: Serialize> IntoResponse for JsonResponse<T> {
    fn into_response(self) -> Response {
        json(StatusCode::OK, "application/json", &self.0)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        json(status, "application/problem+json", &self)
    }
}
