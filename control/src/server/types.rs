//! Routes for types and values.

use std::sync::Arc;

use axum::extract::State;
use inspect::expression::{self, EvaluateError, PrintError};
use inspect::types::{Declaration, DeclarationError};
use serde::Deserialize;
use utoipa::IntoParams;

use super::app::App;
use super::body::{JsonResponse, QueryParams};
use crate::api::{DeclaredType, Printed, Problem, ProblemKind};
use crate::limits::EXPRESSION_CHARS;
use crate::target_memory::TargetMemory;

/// Query of a value: an expression.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct PrintQuery {
    /// Expression in C: variables, `.`, `->`, `[n]`, `*`, `&`, casts and `per_cpu(name, cpu)`. At most 1024 characters.
    #[param(example = "init_task.comm", max_length = 1024)]
    expr: String,
    /// Type of the object at the address named by `expr`: `struct file`. At most 1024 characters.
    #[serde(default, rename = "type")]
    #[param(rename = "type", max_length = 1024)]
    declared: Option<String>,
    /// Maximum number of structs in each other; default 4.
    #[serde(default)]
    #[param(minimum = 1, maximum = 16)]
    depth: Option<u8>,
}

/// Evaluates an expression in the guest's memory.
///
/// A running guest may write during the evaluation: pause the machine for consistent values.
#[utoipa::path(get, path = "/print", tag = "look", params(PrintQuery),
    responses((status = 200, description = "The value", body = Printed),
        (status = 400, description = "The query is not what it should be", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "The text is no expression, or has no value", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn print(
    State(app): State<Arc<App>>,
    QueryParams(query): QueryParams<PrintQuery>,
) -> Result<JsonResponse<Printed>, Problem> {
    let depth = query.depth.map(usize::from);
    if depth.is_some_and(|depth| !(1..=16).contains(&depth)) {
        return Err(ProblemKind::Malformed.with("`depth` is a number from 1 to 16"));
    }
    check_length("expr", &query.expr)?;
    if let Some(declared) = &query.declared {
        check_length("type", declared)?;
    }
    let memory = TargetMemory(&*app.target);
    let printed = expression::Printed::evaluate(
        &memory.kernel(),
        &query.expr,
        query.declared.as_deref(),
        depth,
    );
    let printed = printed.map_err(|error| match error {
        PrintError::Parse(error) => ProblemKind::NotAnExpression.with(error.to_string()),
        PrintError::Evaluate(error) => cannot_evaluate(&error),
    })?;
    Ok(JsonResponse(printed.into()))
}

/// Query of a type: a name.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct TypesQuery {
    /// Name of a struct, union, enum, typedef or function, with or without its keyword. At most 1024 characters.
    #[param(example = "struct list_head", max_length = 1024)]
    name: String,
}

/// Shows the declaration of a type of the guest's kernel.
#[utoipa::path(get, path = "/types", tag = "look", params(TypesQuery),
    responses((status = 200, description = "The declaration", body = DeclaredType),
        (status = 400, description = "The query is not what it should be", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "The text is no type's name, or the kernel has no such type", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn types(
    State(app): State<Arc<App>>,
    QueryParams(query): QueryParams<TypesQuery>,
) -> Result<JsonResponse<DeclaredType>, Problem> {
    check_length("name", &query.name)?;
    let types = app.target.types();
    let types = types.ok_or_else(|| cannot_evaluate(&EvaluateError::NoTypes))?;
    match Declaration::find(types, &query.name) {
        Ok(declaration) => Ok(JsonResponse(declaration.into())),
        Err(DeclarationError::Unknown(error)) => Err(cannot_evaluate(&error)),
        Err(error @ DeclarationError::Name { .. }) => {
            Err(ProblemKind::NotAnExpression.with(error.to_string()))
        }
    }
}

fn check_length(key: &str, text: &str) -> Result<(), Problem> {
    if text.chars().count() > EXPRESSION_CHARS {
        let detail = format!("`{key}` is longer than {EXPRESSION_CHARS} characters");
        return Err(ProblemKind::Malformed.with(detail));
    }
    Ok(())
}

fn cannot_evaluate(error: &EvaluateError) -> Problem {
    ProblemKind::CannotEvaluate
        .with(error.to_string())
        .help(error.help())
}
