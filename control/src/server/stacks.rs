//! The route for stacks.
//!
//! ```text
//!  control-changes:  places of members ── pause: registers, list of tasks, return addresses ── names ── answer
//!                    (the guest runs)     (vCPUs stand)                                     (the guest runs)
//! ```

use std::sync::Arc;

use axum::extract::State;
use errors::chain;
use inspect::stacks::{StackList, StackListError, StackReader, StacksOf, UnnamedStack};
use probes::stopped_vcpu;
use serde::Deserialize;
use text::Paused;
use utoipa::IntoParams;
use vmm::VcpuState;

use super::app::App;
use super::body::{JsonResponse, QueryParams};
use super::views::{cannot_view, prepared};
use crate::api::{Problem, ProblemKind, Stacks};
use crate::operator::Bench;
use crate::target::Target;
use crate::target_memory::TargetMemory;

/// Query of stacks. Without a part, the vCPUs' stacks.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct StacksQuery {
    /// Number of the vCPU whose stack is wanted; excludes `tid` and `all`.
    #[serde(default)]
    #[param(maximum = 18_446_744_073_709_551_615_u64)]
    vcpu: Option<usize>,
    /// Number of the thread (the kernel's `pid`) whose stack is wanted; excludes `vcpu` and `all`.
    #[serde(default)]
    tid: Option<i32>,
    /// Whether the stacks of all vCPUs and all threads are wanted; default `false`.
    #[serde(default)]
    all: bool,
}

/// Unwinds the stacks of the vCPUs, of one vCPU, of one thread, or of all.
#[utoipa::path(get, path = "/stacks", tag = "look", params(StacksQuery),
    responses((status = 200, description = "The stacks", body = Stacks),
        (status = 400, description = "The query is not what it should be", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "There is no such task, or no such vCPU", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "Parts of the query exclude each other, the kernel has no tables for unwinding, or there are too many tasks; for tasks also: the kernel has no type information, has not booted far enough, or its list of tasks is damaged", body = Problem, content_type = "application/problem+json"),
        (status = 500, description = "KVM refused the registers", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn stacks(
    State(app): State<Arc<App>>,
    QueryParams(query): QueryParams<StacksQuery>,
) -> Result<JsonResponse<Stacks>, Problem> {
    let of = match (query.vcpu, query.tid, query.all) {
        (None, None, false) => StacksOf::Vcpus,
        (Some(vcpu), None, false) => StacksOf::Vcpu(vcpu),
        (None, Some(tid), false) => StacksOf::Task(tid),
        (None, None, true) => StacksOf::All,
        _ => {
            let detail = "`vcpu`, `tid` and `all` exclude each other";
            return Err(ProblemKind::Contradictory.with(detail));
        }
    };
    let read = move |bench: &mut Bench<'_>| read(bench, of);
    Ok(JsonResponse(app.operator.run(read).await??))
}

fn read(bench: &mut Bench<'_>, of: StacksOf) -> Result<Stacks, Problem> {
    let target = bench.target();
    let list = prepared(target, |view| StackList::new(view, of))?;
    // The tables of the kernel are read now, and not in the pause.
    let early = target.stack_reader(&VcpuState::default());
    early.map_err(|error| ProblemKind::CannotRead.with(chain(&error)))?;
    let (found, pause) = bench.paused(|target, paused| unwind(target, paused, &list));
    let (found, reader) = found?;
    let named = found.into_iter().map(|found| found.named(&reader).into());
    Ok(Stacks {
        stacks: named.collect(),
        pause,
    })
}

/// Unwinds the stacks of `list` while no vCPU runs.
fn unwind<'t>(
    target: &'t dyn Target,
    paused: &dyn Paused,
    list: &StackList,
) -> Result<(Vec<UnnamedStack>, StackReader<'t>), Problem> {
    let vcpus = paused.vcpu_states();
    let vcpus = vcpus.map_err(|error| ProblemKind::KvmRefused.with(chain(&error)))?;
    let first = vcpus.first().copied().unwrap_or_default();
    let reader = target.stack_reader(&first);
    let reader = reader.map_err(|error| ProblemKind::CannotRead.with(chain(&error)))?;
    let vcpus: Vec<_> = vcpus.iter().map(stopped_vcpu).collect();
    let found = list.unwind(&TargetMemory(target).kernel(), &reader, &vcpus);
    let found = found.map_err(|error| cannot_list(target, &error))?;
    Ok((found, reader))
}

fn cannot_list(target: &dyn Target, error: &StackListError) -> Problem {
    let problem = match error {
        StackListError::Tasks(error) => cannot_view(target, error),
        StackListError::NoVcpu { .. } | StackListError::NoTask { .. } => {
            ProblemKind::NoSuchTask.with(error.to_string())
        }
        StackListError::TooMany { .. } => ProblemKind::CannotRead.with(error.to_string()),
    };
    problem.help(error.help())
}
