//! Routes for views of the guest's kernel: tasks, modules, the log.
//!
//! The operator's thread reads, so that no other client waits for a long read. Lists are read in a pause: at each moment they are whole, and
//! no entry is freed under the reader. The ring of the log is made for readers without a lock, and needs no pause.

use std::error::Error;
use std::sync::Arc;

use axum::extract::State;
use errors::chain;
use inspect::{KernelView, ModuleList, NotReadable, ReadsError, TaskList};
use probes::At;
use serde::Deserialize;
use utoipa::IntoParams;

use super::app::App;
use super::body::{JsonResponse, QueryParams};
use crate::TargetMemory;
use crate::api::{Log, Modules, Pause, Problem, ProblemKind, Tasks};
use crate::operator::Bench;
use crate::target::Target;

/// Query of tasks.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct TasksQuery {
    /// Whether to list every thread of a process; default `false`.
    #[serde(default)]
    threads: bool,
}

/// Lists the tasks of the guest's kernel: the first thread of each process, or all threads.
#[utoipa::path(get, path = "/tasks", tag = "look", params(TasksQuery),
    responses((status = 200, description = "The tasks", body = Tasks),
        (status = 400, description = "The query is not what it should be", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "The kernel has no type information, has not booted far enough, or its list of tasks is damaged", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn tasks(
    State(app): State<Arc<App>>,
    QueryParams(query): QueryParams<TasksQuery>,
) -> Result<JsonResponse<Tasks>, Problem> {
    let read = move |bench: &mut Bench<'_>| {
        let list = prepared(bench.target(), TaskList::new)?;
        paused(bench, |view| list.read(view, query.threads))
    };
    let (tasks, pause) = app.operator.run(read).await??;
    Ok(JsonResponse(Tasks {
        tasks: tasks.into_iter().map(Into::into).collect(),
        pause,
    }))
}

/// Lists the loaded modules of the guest's kernel.
#[utoipa::path(get, path = "/modules", tag = "look",
    responses((status = 200, description = "The modules, maybe none", body = Modules),
        (status = 422, description = "The kernel has no type information or no modules, has not booted far enough, or its list of modules is damaged", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn modules(State(app): State<Arc<App>>) -> Result<JsonResponse<Modules>, Problem> {
    let read = |bench: &mut Bench<'_>| {
        let list = prepared(bench.target(), ModuleList::new)?;
        paused(bench, |view| list.read(view))
    };
    let (modules, pause) = app.operator.run(read).await??;
    Ok(JsonResponse(Modules {
        modules: modules.into_iter().map(Into::into).collect(),
        pause,
    }))
}

/// Reads the log of the guest's kernel, without a pause.
#[utoipa::path(get, path = "/log", tag = "look",
    responses((status = 200, description = "The log", body = Log),
        (status = 422, description = "The kernel has no type information, has not booted far enough, or its log is damaged", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn log(State(app): State<Arc<App>>) -> Result<JsonResponse<Log>, Problem> {
    let read = |bench: &mut Bench<'_>| prepared(bench.target(), inspect::Log::read);
    let log = app.operator.run(read).await??;
    Ok(JsonResponse(log.into()))
}

/// Looks at the kernel while the guest runs.
pub(super) fn prepared<T, E: Error + 'static>(
    target: &dyn Target,
    look: impl FnOnce(&KernelView<'_>) -> Result<T, E>,
) -> Result<T, Problem> {
    look(&TargetMemory(target).kernel()).map_err(|error| cannot_view(target, &error))
}

/// Looks at the kernel while no vCPU runs.
fn paused<T, E: Error + 'static>(
    bench: &mut Bench<'_>,
    look: impl FnOnce(&KernelView<'_>) -> Result<T, E>,
) -> Result<(T, Pause), Problem> {
    let (seen, pause) = bench.paused(|target, _| look(&TargetMemory(target).kernel()));
    let target = bench.target();
    Ok((seen.map_err(|error| cannot_view(target, &error))?, pause))
}

/// The error with its causes. If an address could not be read, the last cause is why: the kernel may not have booted far enough.
pub(super) fn cannot_view(target: &dyn Target, error: &(dyn Error + 'static)) -> Problem {
    let mut detail = chain(error);
    let mut causes = std::iter::once(error).chain(errors::causes(error));
    let failed = causes.find_map(|cause| match cause.downcast_ref() {
        Some(ReadsError::NotReadable(failed)) => Some(failed),
        _ => cause.downcast_ref(),
    });
    if let Some(NotReadable { at, .. }) = failed
        && let Err(why) = target.read(At::Virtual(*at), &mut [0])
    {
        detail = format!("{detail}: {why}");
    }
    ProblemKind::CannotRead.with(detail)
}
