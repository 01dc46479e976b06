//! The OpenAPI description of the interface, and its route.

use axum::http::StatusCode;
use axum::response::Response;
use utoipa::OpenApi;

use super::body::json;
use super::{dump, events, look, machine, metrics, per_cpu, probe, stacks, types, views};
use crate::api;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "hyprobe control",
        description = "Control of a running machine over its Unix socket. Errors are problem documents (RFC 9457).",
    ),
    paths(
        probe::list,
        probe::add,
        probe::remove_all,
        probe::show,
        probe::change,
        probe::remove,
        probe::stats,
        machine::knobs,
        machine::set_knobs,
        machine::show,
        machine::pause,
        machine::resume,
        machine::stop,
        events::stream,
        look::symbols,
        look::memory,
        dump::dump,
        types::types,
        types::print,
        views::tasks,
        stacks::stacks,
        views::modules,
        views::log,
        per_cpu::per_cpu,
        show,
        metrics::metrics,
    ),
    components(schemas(api::AddProbe))
)]
struct Description;

/// The OpenAPI description of the interface; `docs/openapi.json` is a copy.
#[must_use]
pub fn openapi() -> utoipa::openapi::OpenApi {
    Description::openapi()
}

/// Returns the OpenAPI description of the interface.
#[utoipa::path(get, path = "/openapi.json", tag = "look", operation_id = "openapi",
    responses((status = 200, description = "OpenAPI 3.1", body = Object, content_type = "application/json")))]
pub(super) async fn show() -> Response {
    json(StatusCode::OK, "application/json", &openapi())
}
