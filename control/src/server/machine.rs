//! The machine and the knobs.

use std::sync::Arc;

use axum::extract::State;

use super::app::App;
use super::body::{JsonBody, JsonResponse};
use crate::api::{Knobs, Machine, Pause, Problem, SetKnobs};

impl App {
    fn machine(&self) -> Machine {
        let facts = self.target.facts().clone();
        let statuses = self.target.statuses();
        let (oldest_event, next_event) = self.hub.numbers();
        let hits = statuses.iter().map(|status| status.summary.hits);
        Machine {
            state: self.state(),
            accel: facts.accel,
            cpus: facts.cpus,
            memory_bytes: facts.memory_bytes,
            kernel: facts.kernel,
            build_id: facts.build_id,
            slide: self.target.slide(),
            ts_ns: self.target.clock_ns(),
            probes: statuses.len() as u64,
            // A guest's kernel can write any number to the counters of detours.
            hits: hits.fold(0, u64::saturating_add),
            pauses: self.pauses.stats(),
            next_event,
            oldest_event,
            connections: self.connections() as u64,
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}

/// Shows the machine: constant properties, state and counts.
#[utoipa::path(get, path = "/machine", tag = "machine",
    responses((status = 200, description = "The machine", body = Machine)))]
pub(super) async fn show(State(app): State<Arc<App>>) -> JsonResponse<Machine> {
    JsonResponse(app.machine())
}

/// Pauses every vCPU until the machine is resumed or stopped.
///
/// Probes can be changed meanwhile. If the machine is paused already, nothing changes.
#[utoipa::path(post, path = "/machine/pause", tag = "machine",
    responses((status = 200, description = "It stands", body = Machine),
        (status = 503, description = "Too many changes wait already, or the run is over", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn pause(State(app): State<Arc<App>>) -> Result<JsonResponse<Machine>, Problem> {
    app.operator.run(|bench| bench.hold()).await?;
    Ok(JsonResponse(app.machine()))
}

/// Resumes a paused machine.
///
/// If the machine is running, nothing changes.
#[utoipa::path(post, path = "/machine/resume", tag = "machine",
    responses((status = 200, description = "It runs", body = Machine),
        (status = 503, description = "Too many changes wait already, or the run is over", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn resume(State(app): State<Arc<App>>) -> Result<JsonResponse<Machine>, Problem> {
    app.operator.run(|bench| bench.release()).await?;
    Ok(JsonResponse(app.machine()))
}

/// Ends the guest. The run reports the summary, and removes the control socket.
#[utoipa::path(post, path = "/machine/stop", tag = "machine",
    responses((status = 200, description = "It ends", body = Machine)))]
pub(super) async fn stop(State(app): State<Arc<App>>) -> JsonResponse<Machine> {
    app.target.stop();
    JsonResponse(app.machine())
}

/// Shows the knobs.
#[utoipa::path(get, path = "/knobs", tag = "knobs",
    responses((status = 200, description = "The knobs", body = Knobs)))]
pub(super) async fn knobs(State(app): State<Arc<App>>) -> JsonResponse<Knobs> {
    JsonResponse(app.knobs(Pause::default()))
}

impl App {
    fn knobs(&self, pause: Pause) -> Knobs {
        Knobs {
            enabled: self.target.is_armed(),
            optimization: self.target.is_optimising(),
            pause,
        }
    }
}

/// Sets knobs: first `optimization`, then `enabled`.
#[utoipa::path(put, path = "/knobs", tag = "knobs", request_body = SetKnobs,
    responses((status = 200, description = "They are set", body = Knobs),
        (status = 400, description = "The body is not what it should be", body = Problem, content_type = "application/problem+json"),
        (status = 413, description = "The body is larger than 1 MiB", body = Problem, content_type = "application/problem+json"),
        (status = 500, description = "Bytes could not be changed", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "Too many changes wait already, or the run is over", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn set_knobs(
    State(app): State<Arc<App>>,
    JsonBody(wanted): JsonBody<SetKnobs>,
) -> Result<JsonResponse<Knobs>, Problem> {
    let SetKnobs {
        enabled,
        optimization,
    } = wanted;
    let (changed, pause) = app
        .operator
        .run(move |bench| {
            if optimization == Some(true) {
                bench.target().prepare_optimising();
            }
            bench.paused(|target, paused| {
                let is_new = |wanted: &bool| *wanted != target.is_optimising();
                if let Some(wanted) = optimization.filter(is_new) {
                    target.set_optimising(paused, wanted)?;
                }
                match enabled.filter(|enabled| *enabled != target.is_armed()) {
                    Some(enabled) => target.set_armed(paused, enabled),
                    None => Ok(()),
                }
            })
        })
        .await?;
    changed.map_err(super::changes::cannot_change)?;
    Ok(JsonResponse(app.knobs(pause)))
}
