//! The OpenAPI description of the interface.

use utoipa::OpenApi;

use super::{events, look, machine, metrics, probe};
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
        look::openapi,
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
