//! The router: the paths and their handlers.

use std::sync::Arc;

use axum::Router;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post, put};

use super::app::App;
use super::{
    description, dump, events, look, machine, metrics, per_cpu, probe, stacks, types, views,
};
use crate::api::ProblemKind;

/// The router of all paths.
pub(super) fn routes(app: Arc<App>) -> Router {
    Router::new()
        .route(
            "/probes",
            get(probe::list).post(probe::add).delete(probe::remove_all),
        )
        .route(
            "/probes/{id}",
            get(probe::show).patch(probe::change).delete(probe::remove),
        )
        .route("/probes/{id}/stats", get(probe::stats))
        .route("/knobs", put(machine::set_knobs).get(machine::knobs))
        .route("/machine", get(machine::show))
        .route("/machine/pause", post(machine::pause))
        .route("/machine/resume", post(machine::resume))
        .route("/machine/stop", post(machine::stop))
        .route("/events", get(events::stream))
        .route("/symbols", get(look::symbols))
        .route("/memory", get(look::memory))
        .route("/dump", get(dump::dump))
        .route("/types", get(types::types))
        .route("/print", get(types::print))
        .route("/tasks", get(views::tasks))
        .route("/stacks", get(stacks::stacks))
        .route("/modules", get(views::modules))
        .route("/log", get(views::log))
        .route("/percpu", get(per_cpu::per_cpu))
        .route("/metrics", get(metrics::metrics))
        .route("/openapi.json", get(description::show))
        .fallback(async || -> Response {
            ProblemKind::NoSuchPath
                .with("there is nothing at this path")
                .help(Some("GET /openapi.json describes what there is".to_owned()))
                .into_response()
        })
        .method_not_allowed_fallback(async || -> Response {
            ProblemKind::NoSuchMethod
                .with("this path has no such method")
                .help(Some("GET /openapi.json describes what there is".to_owned()))
                .into_response()
        })
        .with_state(app)
}
