//! The route for per-CPU variables.

use std::sync::Arc;

use axum::extract::State;
use inspect::{PerCpuError, PerCpuList};
use serde::Deserialize;
use utoipa::IntoParams;

use super::app::App;
use super::body::{JsonResponse, QueryParams};
use super::views::cannot_view;
use crate::TargetMemory;
use crate::api::{PerCpuVariables, Problem, ProblemKind};
use crate::limits::PATTERN_CHARS;
use crate::operator::Bench;

/// Query of per-CPU variables: a pattern.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct PerCpuQuery {
    /// A pattern for whole names: `*`, `?`, `[a-z]`; default `*`. At most 256 characters.
    #[serde(default = "all", rename = "match")]
    #[param(rename = "match", example = "runqueues", max_length = 256)]
    pattern: String,
}

fn all() -> String {
    "*".to_owned()
}

/// Lists per-CPU variables of the guest's kernel, without a pause.
///
/// A running guest may write during the read: pause the machine for consistent values.
#[utoipa::path(get, path = "/percpu", tag = "look", params(PerCpuQuery),
    responses((status = 200, description = "The variables", body = PerCpuVariables),
        (status = 400, description = "The query is not what it should be", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "No variable matches, the kernel's symbols do not have the variables, or the kernel has not booted far enough", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn per_cpu(
    State(app): State<Arc<App>>,
    QueryParams(query): QueryParams<PerCpuQuery>,
) -> Result<JsonResponse<PerCpuVariables>, Problem> {
    let pattern = query.pattern;
    if pattern.chars().count() > PATTERN_CHARS {
        let detail = format!("the pattern is longer than {PATTERN_CHARS} characters");
        return Err(ProblemKind::Malformed.with(detail));
    }
    let read = move |bench: &mut Bench<'_>| {
        let target = bench.target();
        let list = PerCpuList::read(&TargetMemory(target).kernel(), &pattern);
        list.map_err(|error| match error {
            PerCpuError::NoMatch { .. } => ProblemKind::CannotEvaluate
                .with(error.to_string())
                .help(error.help()),
            _ => cannot_view(target, &error),
        })
    };
    let list = app.operator.run(read).await??;
    Ok(JsonResponse(list.into()))
}
