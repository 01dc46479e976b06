//! Probes come, change and go. Each request is one transaction with one pause.

use std::collections::BTreeSet;
use std::error::Error;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use probes::{
    Action, ArmError, Location, NewProbe, Paused, ProbeAction, ProbeId, ProbeRecord, ProbeSpec,
    ProbeState, RegisterError, SessionError,
};
use serde::Deserialize;
use utoipa::IntoParams;

use super::app::{App, lock, no_probe};
use super::body::{Asked, Bytes, Named, Object, Said, Told, json, object, parse};
use super::names::{Names, shortened};
use crate::api::{
    AddProbe, AddProbes, Added, ChangeProbe, Changed, Pause, Probe, Probes, Problem, ProblemKind,
    Removed, Stats,
};
use crate::limits::{PROBES_LISTED, PROBES_PER_REQUEST, PROBES_SHOWN};
use crate::target::Target;

/// Which probes.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListQuery {
    /// Probes with a higher number than this.
    #[serde(default)]
    after: Option<u64>,
    /// How many at the most, up to 10 000; 1000 if nothing is said.
    #[serde(default)]
    limit: Option<usize>,
}

/// All probes, in the order in which they were added, a page at a time.
#[utoipa::path(get, path = "/probes", tag = "probes", params(ListQuery),
    responses((status = 200, description = "Probes", body = Probes),
        (status = 400, description = "The query is not what it should be", body = Problem)))]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    Asked(asked): Asked<ListQuery>,
) -> Told<Probes> {
    let limit = asked.limit.unwrap_or(PROBES_SHOWN).clamp(1, PROBES_LISTED);
    let records = app.target.records();
    let total = records.len() as u64;
    let is_wanted =
        |record: &ProbeRecord| asked.after.is_none_or(|after| u64::from(record.id) > after);
    let mut wanted = records.into_iter().filter(is_wanted).peekable();
    let mut page: Vec<ProbeRecord> = wanted.by_ref().take(limit).collect();
    // The matches of a pattern share a number, and so a page.
    while let Some(alike) =
        wanted.next_if(|next| page.last().is_some_and(|last| last.id == next.id))
    {
        page.push(alike);
    }
    let next = wanted.peek().and(page.last()).map(|last| last.id.into());
    Told(Probes {
        probes: app.shown(page),
        total,
        next,
    })
}

/// Adds a probe, or with an array several: all of them or none.
#[utoipa::path(post, path = "/probes", tag = "probes",
    request_body(content = AddProbes, description = "A probe or an array of at most 1000"),
    responses((status = 201, description = "They are there", body = Added),
        (status = 400, description = "The body is not what it should be, or its text is no probe", body = Problem),
        (status = 409, description = "The name is taken", body = Problem),
        (status = 413, description = "The body is larger than 1 MiB", body = Problem),
        (status = 422, description = "The kernel has no such place, or it cannot be planted", body = Problem),
        (status = 503, description = "Too many changes wait already, or the run is over", body = Problem)))]
pub(super) async fn add(
    State(app): State<Arc<App>>,
    Bytes(body): Bytes,
) -> Result<Response, Problem> {
    let (wanted, form) = understand(&body)?;
    let orders = wanted
        .into_iter()
        .enumerate()
        .map(|(index, wanted)| Order::new(wanted, form, index))
        .collect::<Result<Vec<_>, _>>()?;
    let names = app.shared_names();
    let added = app.operator.run(move |bench| {
        let new: Vec<NewProbe> = orders.iter().map(|order| order.new.clone()).collect();
        bench
            .target()
            .check(&new)
            .map_err(|error| cannot_register(&error.into(), &orders))?;
        let (added, pause) =
            bench.paused(|target, paused| register(target, paused, &orders, &new, &names));
        Ok((added?, pause))
    });
    let (ids, pause) = added.await??;
    let mut records = app.target.records();
    let known: BTreeSet<ProbeId> = ids.iter().copied().collect();
    records.retain(|record| known.contains(&record.id));
    records.truncate(PROBES_SHOWN);
    let ids: Vec<u64> = ids.into_iter().map(u64::from).collect();
    let id = match ids[..] {
        [only] => Some(only),
        _ => None,
    };
    let added = Added {
        id,
        ids,
        probes: app.shown(records),
        pause,
    };
    let mut response = json(StatusCode::CREATED, "application/json", &added);
    let place = id.and_then(|id| HeaderValue::from_str(&format!("/probes/{id}")).ok());
    if let Some(place) = place {
        response.headers_mut().insert(header::LOCATION, place);
    }
    Ok(response)
}

/// How a body was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    One,
    Array,
}

fn understand(body: &[u8]) -> Result<(Vec<AddProbe>, Form), Problem> {
    if !body.trim_ascii_start().starts_with(b"[") {
        return Ok((vec![object(parse(body)?)?], Form::One));
    }
    let wanted: Vec<Object> = parse(body)?;
    if !(1..=PROBES_PER_REQUEST).contains(&wanted.len()) {
        return Err(ProblemKind::Malformed.with(format!(
            "the array has {} probes; it may have 1 to {PROBES_PER_REQUEST}",
            wanted.len()
        )));
    }
    let understood = wanted
        .into_iter()
        .enumerate()
        .map(|(index, wanted)| object(wanted).map_err(|problem| problem.at(format!("/{index}"))));
    Ok((understood.collect::<Result<_, _>>()?, Form::Array))
}

/// A probe that was asked for, understood.
#[derive(Clone, Debug)]
struct Order {
    new: NewProbe,
    name: Option<String>,
    /// Where in the body it was asked for.
    pointer: String,
}

impl Order {
    fn new(wanted: AddProbe, form: Form, index: usize) -> Result<Self, Problem> {
        let pointer = match form {
            Form::One => String::new(),
            Form::Array => format!("/{index}"),
        };
        let spec: ProbeSpec = wanted.spec.parse().map_err(|error: probes::SpecError| {
            ProblemKind::NotAProbe
                .with(format!(
                    "`{}` is not a probe: {error}",
                    shortened(&wanted.spec)
                ))
                .help(error.help())
                .at(format!("{pointer}/spec"))
        })?;
        if wanted.maxactive == Some(0) {
            return Err(ProblemKind::Malformed
                .with(format!("`maxactive` is a number from 1 to {}", u16::MAX))
                .at(format!("{pointer}/maxactive")));
        }
        if wanted.name.is_some() && stands_for_many(&spec) {
            return Err(ProblemKind::Malformed
                .with(format!(
                    "a name is for one probe, and `{spec}` stands for many"
                ))
                .at(format!("{pointer}/name")));
        }
        Ok(Self {
            new: NewProbe {
                spec,
                action: match wanted.action {
                    ProbeAction::Trace => Action::Trace,
                    ProbeAction::Count => Action::Count,
                },
                maxactive: wanted.maxactive.map(usize::from),
                enabled: wanted.enabled,
            },
            name: wanted.name,
            pointer,
        })
    }
}

/// Whether each match is a probe of its own.
fn stands_for_many(spec: &ProbeSpec) -> bool {
    spec.module.is_none() && matches!(spec.location, Location::Glob(_))
}

/// All of them or none, names included. On the operator's thread.
fn register(
    target: &dyn Target,
    paused: &dyn Paused,
    orders: &[Order],
    new: &[NewProbe],
    names: &std::sync::Mutex<Names>,
) -> Result<Vec<ProbeId>, Problem> {
    let mut taken = BTreeSet::new();
    for order in orders {
        let Some(name) = &order.name else { continue };
        let pointer = || format!("{}/name", order.pointer);
        lock(names)
            .check(name, None)
            .map_err(|problem| problem.at(pointer()))?;
        if !taken.insert(name) {
            let twice =
                ProblemKind::NameTaken.with(format!("two of the probes are called `{name}`"));
            return Err(twice.at(pointer()));
        }
    }
    if target.slide().is_none() {
        moves(orders)?;
    }
    let ids = target
        .register(paused, new)
        .map_err(|error| cannot_register(&error, orders))?;
    let known: BTreeSet<ProbeId> = ids.iter().copied().collect();
    let records: Vec<ProbeRecord> = target
        .records()
        .into_iter()
        .filter(|record| known.contains(&record.id))
        .collect();
    if let Some(problem) = refused(orders, &records) {
        // They have just been added: none of them has fired.
        target.unregister(paused, &ids).map_err(cannot_change)?;
        return Err(problem);
    }
    give_names(orders, &records, &mut lock(names));
    Ok(ids)
}

/// An address means nothing while the kernel has not said where it runs.
fn moves(orders: &[Order]) -> Result<(), Problem> {
    let address = |order: &&Order| matches!(order.new.spec.location, Location::Address(_));
    match orders.iter().find(address) {
        None => Ok(()),
        Some(order) => {
            let spec = order.new.spec.clone();
            let told = SessionError::AddressMoves { spec }.to_string();
            Err(ProblemKind::CannotProbe
                .with(told)
                .at(format!("{}/spec", order.pointer)))
        }
    }
}

/// What was asked for by itself must be planted or be able to wait; of a pattern's matches some may not be.
fn refused(orders: &[Order], records: &[ProbeRecord]) -> Option<Problem> {
    orders
        .iter()
        .filter(|order| !stands_for_many(&order.new.spec))
        .find_map(|order| {
            let spec = order.new.spec.to_string();
            let record = records.iter().find(|record| {
                record.summary.probe == spec && record.summary.state == ProbeState::Refused
            })?;
            let reason = record.summary.reason.clone().unwrap_or_default();
            let detail = format!("cannot probe `{spec}`: {reason}");
            Some(
                ProblemKind::CannotProbe
                    .with(detail)
                    .at(format!("{}/spec", order.pointer)),
            )
        })
}

fn give_names(orders: &[Order], records: &[ProbeRecord], names: &mut Names) {
    let mut given = BTreeSet::new();
    for order in orders {
        let spec = order.new.spec.to_string();
        let is_it =
            |record: &&ProbeRecord| record.summary.probe == spec && !given.contains(&record.id);
        let found = match stands_for_many(&order.new.spec) {
            true => None,
            false => records.iter().find(is_it).map(|record| record.id),
        };
        given.extend(found);
        if let (Some(id), Some(name)) = (found, &order.name) {
            names.give(id, name.clone());
        }
    }
}

fn cannot_register(error: &RegisterError, orders: &[Order]) -> Problem {
    match error {
        RegisterError::Resolve(error) => {
            let problem = ProblemKind::CannotProbe
                .with(error.to_string())
                .help(error.help());
            let to_blame = orders
                .iter()
                .find(|order| order.new.spec.to_string() == error.spec);
            match to_blame {
                Some(order) => problem.at(format!("{}/spec", order.pointer)),
                None => problem,
            }
        }
        RegisterError::Arm(error) => ProblemKind::CannotChange.with(chain(error)),
    }
}

pub(super) fn cannot_change(error: ArmError) -> Problem {
    ProblemKind::CannotChange.with(chain(&error))
}

/// An error with its causes in one line.
fn chain(error: &dyn Error) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        line.push_str(": ");
        line.push_str(&error.to_string());
        cause = error.source();
    }
    line
}

/// One probe, by its number or its own name; several for a pattern in a module.
#[utoipa::path(get, path = "/probes/{id}", tag = "probes",
    params(("id" = String, Path, description = "A probe's number or its own name")),
    responses((status = 200, description = "The probe", body = Changed),
        (status = 404, description = "There is none", body = Problem)))]
pub(super) async fn show(
    State(app): State<Arc<App>>,
    Named(named): Named,
) -> Result<Told<Changed>, Problem> {
    let records = app.known(&named)?;
    Ok(Told(Changed {
        probes: app.shown(records),
        pause: Pause::default(),
    }))
}

/// Its counts at this moment.
#[utoipa::path(get, path = "/probes/{id}/stats", tag = "probes",
    params(("id" = String, Path, description = "A probe's number or its own name")),
    responses((status = 200, description = "Its counts", body = Stats),
        (status = 404, description = "There is none", body = Problem)))]
pub(super) async fn stats(
    State(app): State<Arc<App>>,
    Named(named): Named,
) -> Result<Told<Stats>, Problem> {
    let records = app.known(&named)?;
    let id = records.first().map_or(0, |record| record.id.into());
    Ok(Told(Stats {
        id,
        ts_ns: app.target.clock_ns(),
        probes: records.into_iter().map(|record| record.summary).collect(),
    }))
}

/// Enables, disables or names it.
#[utoipa::path(patch, path = "/probes/{id}", tag = "probes", request_body = ChangeProbe,
    params(("id" = String, Path, description = "A probe's number or its own name")),
    responses((status = 200, description = "The probe as it is now", body = Changed),
        (status = 400, description = "The body is not what it should be", body = Problem),
        (status = 404, description = "There is none", body = Problem),
        (status = 409, description = "The name is taken", body = Problem)))]
pub(super) async fn change(
    State(app): State<Arc<App>>,
    Named(named): Named,
    Said(wanted): Said<ChangeProbe>,
) -> Result<Told<Changed>, Problem> {
    let id = app.probe(&named)?;
    app.known(&named)?;
    let mut pause = Pause::default();
    if let Some(name) = &wanted.name {
        app.names()
            .check(name, Some(id))
            .map_err(|problem| problem.at("/name".to_owned()))?;
    }
    if let Some(enabled) = wanted.enabled {
        let (changed, cost) = app
            .operator
            .run(move |bench| {
                bench.paused(|target, paused| target.set_enabled(paused, id, enabled))
            })
            .await?;
        pause = cost;
        if !changed.map_err(cannot_change)? {
            return Err(no_probe(&named));
        }
    }
    if let Some(name) = wanted.name {
        app.names().give(id, name);
    }
    let records = app.target.records_of(id);
    Ok(Told(Changed {
        probes: app.shown(records),
        pause,
    }))
}

/// Removes it. Its last counts come back.
#[utoipa::path(delete, path = "/probes/{id}", tag = "probes",
    params(("id" = String, Path, description = "A probe's number or its own name")),
    responses((status = 200, description = "It is gone", body = Removed),
        (status = 404, description = "There is none", body = Problem)))]
pub(super) async fn remove(
    State(app): State<Arc<App>>,
    Named(named): Named,
) -> Result<Told<Removed>, Problem> {
    let id = app.probe(&named)?;
    app.known(&named)?;
    let removed = app.remove(Some(id)).await?;
    if removed.removed == 0 {
        return Err(no_probe(&named));
    }
    Ok(Told(removed))
}

/// Removes all probes.
#[utoipa::path(delete, path = "/probes", tag = "probes",
    responses((status = 200, description = "They are gone", body = Removed)))]
pub(super) async fn remove_all(State(app): State<Arc<App>>) -> Result<Told<Removed>, Problem> {
    app.remove(None).await.map(Told)
}

impl App {
    /// Removes one probe, or all.
    async fn remove(&self, id: Option<ProbeId>) -> Result<Removed, Problem> {
        let (removed, pause) = self
            .operator
            .run(move |bench| {
                bench.paused(|target, paused| {
                    let mut records = match id {
                        Some(id) => target.records_of(id),
                        None => target.records(),
                    };
                    let ids: Vec<ProbeId> = records.iter().map(|record| record.id).collect();
                    let removed = target.unregister(paused, &ids)?;
                    records.truncate(PROBES_SHOWN);
                    Ok((removed, records))
                })
            })
            .await?;
        let (removed, records) = removed.map_err(cannot_change)?;
        let probes = self.shown(records);
        match id {
            Some(id) => self.names().forget(id),
            None => {
                let left: BTreeSet<ProbeId> = self
                    .target
                    .records()
                    .iter()
                    .map(|record| record.id)
                    .collect();
                self.names().retain(|id| left.contains(&id));
            }
        }
        Ok(Removed {
            removed: removed as u64,
            probes,
            pause,
        })
    }

    /// The probe that a path names, if there is one.
    fn known(&self, named: &str) -> Result<Vec<ProbeRecord>, Problem> {
        let records = self.target.records_of(self.probe(named)?);
        match records.is_empty() {
            true => Err(no_probe(named)),
            false => Ok(records),
        }
    }

    fn shown(&self, records: Vec<ProbeRecord>) -> Vec<Probe> {
        let names = self.names().by_id();
        let shown = records.into_iter().map(|record| {
            let name = names.get(&record.id).cloned();
            Probe::new(record, name)
        });
        shown.collect()
    }
}
