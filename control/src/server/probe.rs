//! Routes that list, add, change and remove probes. Each change is one transaction with at most one pause.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use events::{ProbeId, ProbeStatus};
use serde::Deserialize;
use utoipa::IntoParams;

use super::additions::Additions;
use super::app::{App, no_probe};
use super::body::{Bytes, JsonBody, JsonResponse, Named, QueryParams, json};
use super::changes;
use crate::api::{AddProbes, Added, ChangeProbe, Changed, Pause, Probes, Problem, Removed, Stats};
use crate::limits::{PROBES_LISTED, PROBES_SHOWN};

/// Query of the list of probes: a page.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListQuery {
    /// Lists only probes with a number above `after`.
    #[serde(default)]
    #[param(maximum = 18_446_744_073_709_551_615_u64)]
    after: Option<u64>,
    /// Maximum number of probes in the page, up to 10 000; default 1000.
    #[serde(default)]
    #[param(maximum = 18_446_744_073_709_551_615_u64)]
    limit: Option<usize>,
}

/// Lists probes page by page, in the order of their registration.
#[utoipa::path(get, path = "/probes", tag = "probes", params(ListQuery),
    responses((status = 200, description = "Probes", body = Probes),
        (status = 400, description = "The query is not what it should be", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    QueryParams(query): QueryParams<ListQuery>,
) -> JsonResponse<Probes> {
    let limit = query.limit.unwrap_or(PROBES_SHOWN).clamp(1, PROBES_LISTED);
    let statuses = app.target.statuses();
    let total = statuses.len() as u64;
    let is_wanted =
        |status: &ProbeStatus| query.after.is_none_or(|after| u64::from(status.id) > after);
    let mut wanted = statuses.into_iter().filter(is_wanted).peekable();
    let mut page: Vec<ProbeStatus> = wanted.by_ref().take(limit).collect();
    // The matches of a pattern in a module share a number, and therefore a page.
    while let Some(alike) =
        wanted.next_if(|next| page.last().is_some_and(|last| last.id == next.id))
    {
        page.push(alike);
    }
    let next = wanted.peek().and(page.last()).map(|last| last.id.into());
    JsonResponse(Probes {
        probes: app.named(page),
        total,
        next,
    })
}

/// Adds one probe or an array of probes: all or none.
#[utoipa::path(post, path = "/probes", tag = "probes",
    request_body(content = AddProbes, description = "A probe or an array of at most 1000"),
    responses((status = 201, description = "They are there", body = Added),
        (status = 400, description = "The body is not what it should be", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "The name is taken", body = Problem, content_type = "application/problem+json"),
        (status = 413, description = "The body is larger than 1 MiB", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "The text is no probe or no program, parts exclude each other, or the kernel has no such place that can be planted", body = Problem, content_type = "application/problem+json"),
        (status = 500, description = "Bytes could not be changed", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "Too many changes wait already, or the run is over", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn add(
    State(app): State<Arc<App>>,
    Bytes(body): Bytes,
) -> Result<Response, Problem> {
    let additions = Additions::from_body(&body)?;
    let names = app.shared_names();
    let added = app
        .operator
        .run(move |bench| additions.register(bench, &names));
    let (ids, pause) = added.await??;
    let known: BTreeSet<ProbeId> = ids.iter().copied().collect();
    let statuses = app.target.statuses_among(&known, PROBES_SHOWN);
    let ids: Vec<u64> = ids.into_iter().map(u64::from).collect();
    let id = match ids[..] {
        [only] => Some(only),
        _ => None,
    };
    let added = Added {
        id,
        ids,
        probes: app.named(statuses),
        pause,
    };
    let mut response = json(StatusCode::CREATED, "application/json", &added);
    let place = id.and_then(|id| HeaderValue::from_str(&format!("/probes/{id}")).ok());
    if let Some(place) = place {
        response.headers_mut().insert(header::LOCATION, place);
    }
    Ok(response)
}

/// Shows a probe by number or own name; several records for a pattern in a module.
#[utoipa::path(get, path = "/probes/{id}", tag = "probes",
    params(("id" = String, Path, description = "A probe's number or its own name")),
    responses((status = 200, description = "The probe", body = Changed),
        (status = 400, description = "The path is not what it should be", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "There is none", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn show(
    State(app): State<Arc<App>>,
    Named(named): Named,
) -> Result<JsonResponse<Changed>, Problem> {
    let statuses = app.known(&named)?;
    Ok(JsonResponse(Changed {
        probes: app.named(statuses),
        pause: Pause::default(),
    }))
}

/// Shows the present counts of a probe.
#[utoipa::path(get, path = "/probes/{id}/stats", tag = "probes",
    params(("id" = String, Path, description = "A probe's number or its own name")),
    responses((status = 200, description = "Its counts", body = Stats),
        (status = 400, description = "The path is not what it should be", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "There is none", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn stats(
    State(app): State<Arc<App>>,
    Named(named): Named,
) -> Result<JsonResponse<Stats>, Problem> {
    let statuses = app.known(&named)?;
    let id = statuses.first().map_or(0, |status| status.id.into());
    Ok(JsonResponse(Stats {
        id,
        ts_ns: app.target.clock_ns(),
        probes: statuses.into_iter().map(|status| status.summary).collect(),
    }))
}

/// Enables, disables or names a probe.
#[utoipa::path(patch, path = "/probes/{id}", tag = "probes", request_body = ChangeProbe,
    params(("id" = String, Path, description = "A probe's number or its own name")),
    responses((status = 200, description = "The probe as it is now", body = Changed),
        (status = 400, description = "The body is not what it should be", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "There is none", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "The name is taken", body = Problem, content_type = "application/problem+json"),
        (status = 413, description = "The body is larger than 1 MiB", body = Problem, content_type = "application/problem+json"),
        (status = 500, description = "Bytes could not be changed", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "Too many changes wait already, or the run is over", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn change(
    State(app): State<Arc<App>>,
    Named(named): Named,
    JsonBody(wanted): JsonBody<ChangeProbe>,
) -> Result<JsonResponse<Changed>, Problem> {
    let id = app.probe(&named)?;
    app.known(&named)?;
    let names = app.shared_names();
    let changed = app
        .operator
        .run(move |bench| changes::change(bench, id, wanted, &names));
    match changed.await?? {
        Some(changed) => Ok(JsonResponse(changed)),
        None => Err(no_probe(&named)),
    }
}

/// Removes a probe. The answer has the final counts.
#[utoipa::path(delete, path = "/probes/{id}", tag = "probes",
    params(("id" = String, Path, description = "A probe's number or its own name")),
    responses((status = 200, description = "It is gone", body = Removed),
        (status = 400, description = "The path is not what it should be", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "There is none", body = Problem, content_type = "application/problem+json"),
        (status = 500, description = "Bytes could not be changed", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "Too many changes wait already, or the run is over", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn remove(
    State(app): State<Arc<App>>,
    Named(named): Named,
) -> Result<JsonResponse<Removed>, Problem> {
    let id = app.probe(&named)?;
    app.known(&named)?;
    let removed = app.remove(Some(id)).await?;
    if removed.removed == 0 {
        return Err(no_probe(&named));
    }
    Ok(JsonResponse(removed))
}

/// Removes all probes.
#[utoipa::path(delete, path = "/probes", tag = "probes",
    responses((status = 200, description = "They are gone", body = Removed),
        (status = 500, description = "Bytes could not be changed", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "Too many changes wait already, or the run is over", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn remove_all(
    State(app): State<Arc<App>>,
) -> Result<JsonResponse<Removed>, Problem> {
    app.remove(None).await.map(JsonResponse)
}

impl App {
    /// Removes the probe `id`, or all probes if `id` is `None`.
    async fn remove(&self, id: Option<ProbeId>) -> Result<Removed, Problem> {
        let names = self.shared_names();
        let removed = self
            .operator
            .run(move |bench| changes::remove(bench, id, &names));
        removed.await?
    }

    /// The statuses of the probe in a path, or a problem if the probe does not exist.
    fn known(&self, named: &str) -> Result<Vec<ProbeStatus>, Problem> {
        let statuses = self.target.statuses_of(self.probe(named)?);
        match statuses.is_empty() {
            true => Err(no_probe(named)),
            false => Ok(statuses),
        }
    }

    /// The statuses with the names of their probes.
    fn named(&self, statuses: Vec<ProbeStatus>) -> Vec<ProbeStatus> {
        changes::named(statuses, &self.names())
    }
}
