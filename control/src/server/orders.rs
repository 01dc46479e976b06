//! Orders: requested probes, from the request's body to their registration.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::str::FromStr;
use std::sync::Mutex;

use errors::chain;
use events::{ProbeId, ProbeState, ProbeStatus};
use manifest::program::{Aggregate, Filter, ProgramError};
use manifest::{Action, Location, ProbeConfig, ProbeSpec};
use probes::{RegisterError, SessionError};
use text::Paused;

use super::app::lock;
use super::body::{Object, object, parse};
use super::changes::cannot_change;
use super::names::{Names, shortened};
use crate::api::{AddProbe, Pause, Problem, ProblemKind};
use crate::limits::PROBES_PER_REQUEST;
use crate::operator::Bench;
use crate::target::{Registration, Target};

/// All requested probes of one request, parsed and checked.
#[derive(Clone, Debug)]
pub(super) struct Orders(Vec<Order>);

/// Form of a body: one object or an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    One,
    Array,
}

/// A requested probe, parsed and checked.
#[derive(Clone, Debug)]
struct Order {
    config: ProbeConfig,
    name: Option<String>,
    /// JSON pointer to the probe in the body.
    pointer: String,
}

impl Order {
    fn new(wanted: AddProbe, form: Form, index: usize) -> Result<Self, Problem> {
        let pointer = match form {
            Form::One => String::new(),
            Form::Array => format!("/{index}"),
        };
        let spec: ProbeSpec = wanted.spec.parse().map_err(|error: manifest::SpecError| {
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
            return Err(ProblemKind::Contradictory
                .with(format!(
                    "a name is for one probe, and `{spec}` stands for many"
                ))
                .at(format!("{pointer}/name")));
        }
        let filter: Option<Filter> = program(wanted.filter.as_deref(), "filter", &pointer)?;
        let aggregate: Option<Aggregate> =
            program(wanted.aggregate.as_deref(), "aggregate", &pointer)?;
        let action = match (aggregate, wanted.action) {
            (Some(_), Some(_)) => {
                return Err(ProblemKind::Contradictory
                    .with("`action` and `aggregate` exclude each other")
                    .at(format!("{pointer}/aggregate")));
            }
            (Some(aggregate), None) => {
                aggregate.fits(spec.kind).map_err(|error| {
                    ProblemKind::CannotProbe
                        .with(format!("cannot probe `{spec}`: {error}"))
                        .help(Some(error.help()))
                        .at(format!("{pointer}/aggregate"))
                })?;
                Action::Aggregate(aggregate)
            }
            (None, action) => action.unwrap_or_default().into(),
        };
        Ok(Self {
            config: ProbeConfig {
                at: spec,
                action,
                filter,
                maxactive: wanted.maxactive.map(usize::from),
                enabled: wanted.enabled,
            },
            name: wanted.name,
            pointer,
        })
    }
}

/// Parses the filter or the aggregate under `key`.
fn program<P: FromStr<Err = ProgramError>>(
    text: Option<&str>,
    key: &str,
    pointer: &str,
) -> Result<Option<P>, Problem> {
    let parsed = text.map(str::parse).transpose();
    parsed.map_err(|error: ProgramError| {
        let (text, span) = (text.unwrap_or_default(), error.span.clone());
        let where_ = match text.get(span.clone()) {
            Some(spot) if !spot.is_empty() => format!(" at byte {}", span.start),
            _ => String::new(),
        };
        ProblemKind::NotAProgram
            .with(format!(
                "`{}` is no {key}: {error}{where_}",
                shortened(text)
            ))
            .help(error.help())
            .at(format!("{pointer}/{key}"))
    })
}

/// Whether each match becomes a separate probe: a pattern without a module.
fn stands_for_many(spec: &ProbeSpec) -> bool {
    spec.module.is_none() && matches!(spec.location, Location::Glob(_))
}

impl Orders {
    /// Parses and checks a body.
    pub(super) fn understood(body: &[u8]) -> Result<Self, Problem> {
        if !body.trim_ascii_start().starts_with(b"[") {
            let wanted = object(parse(body)?)?;
            return Ok(Self(vec![Order::new(wanted, Form::One, 0)?]));
        }
        let wanted: Vec<Object> = parse(body)?;
        if !(1..=PROBES_PER_REQUEST).contains(&wanted.len()) {
            return Err(ProblemKind::Malformed.with(format!(
                "the array has {} probes; it may have 1 to {PROBES_PER_REQUEST}",
                wanted.len()
            )));
        }
        let wanted = wanted
            .into_iter()
            .enumerate()
            .map(|(index, wanted)| {
                object(wanted).map_err(|problem| problem.at(format!("/{index}")))
            })
            .collect::<Result<Vec<_>, _>>()?;
        let orders = wanted
            .into_iter()
            .enumerate()
            .map(|(index, wanted)| Order::new(wanted, Form::Array, index));
        Ok(Self(orders.collect::<Result<_, _>>()?))
    }

    /// Registers all probes or none, with their names. Runs on the operator's thread.
    ///
    /// The pause covers only the necessary work: planting, and the check for refused probes outside a pattern.
    pub(super) fn register(
        &self,
        bench: &mut Bench<'_>,
        names: &Mutex<Names>,
    ) -> Result<(Vec<ProbeId>, Pause), Problem> {
        let Self(orders) = self;
        check_names(orders, &lock(names))?;
        let target = bench.target();
        if target.slide().is_none() {
            moves(orders)?;
        }
        let new: Vec<ProbeConfig> = orders.iter().map(|order| order.config.clone()).collect();
        let registration = target
            .prepare(&new)
            .map_err(|error| cannot_register(&error.into(), orders))?;
        let (planted, pause) =
            bench.paused(|target, paused| plant(target, paused, registration, orders));
        let ids = planted?;
        if orders.iter().any(|order| order.name.is_some()) {
            let known: BTreeSet<ProbeId> = ids.iter().copied().collect();
            let statuses = target.statuses_among(&known, usize::MAX);
            give_names(orders, &statuses, &mut lock(names));
        }
        Ok((ids, pause))
    }
}

fn check_names(orders: &[Order], names: &Names) -> Result<(), Problem> {
    let mut taken = BTreeSet::new();
    for order in orders {
        let Some(name) = &order.name else { continue };
        let pointer = || format!("{}/name", order.pointer);
        names
            .check(name, None)
            .map_err(|problem| problem.at(pointer()))?;
        if !taken.insert(name) {
            let twice =
                ProblemKind::NameTaken.with(format!("two of the probes are called `{name}`"));
            return Err(twice.at(pointer()));
        }
    }
    Ok(())
}

fn plant(
    target: &dyn Target,
    paused: &dyn Paused,
    registration: Registration<'_>,
    orders: &[Order],
) -> Result<Vec<ProbeId>, Problem> {
    let ids = registration(paused).map_err(|error| cannot_register(&error, orders))?;
    if orders.iter().all(|order| stands_for_many(&order.config.at)) {
        return Ok(ids);
    }
    let known: BTreeSet<ProbeId> = ids.iter().copied().collect();
    let statuses = target.statuses_among(&known, usize::MAX);
    if let Some(problem) = refused(orders, &statuses) {
        // Added during this pause: none of the probes has fired.
        target.unregister(paused, &ids).map_err(cannot_change)?;
        return Err(problem);
    }
    Ok(ids)
}

/// Refuses addresses: until the kernel has reported the running address, an address has no meaning.
fn moves(orders: &[Order]) -> Result<(), Problem> {
    let address = |order: &&Order| matches!(order.config.at.location, Location::Address(_));
    match orders.iter().find(address) {
        None => Ok(()),
        Some(order) => {
            let spec = order.config.at.clone();
            let told = SessionError::AddressMoves { spec }.to_string();
            Err(ProblemKind::CannotProbe
                .with(told)
                .at(format!("{}/spec", order.pointer)))
        }
    }
}

/// The problem of the first refused probe outside a pattern. A probe outside a pattern must be planted or pending; some matches of a
/// pattern may be refused.
fn refused(orders: &[Order], statuses: &[ProbeStatus]) -> Option<Problem> {
    let refused: BTreeMap<&str, &ProbeStatus> = statuses
        .iter()
        .filter(|status| status.summary.state == ProbeState::Refused)
        .map(|status| (status.summary.probe.as_str(), status))
        .collect();
    if refused.is_empty() {
        return None;
    }
    let alone = |order: &&Order| !stands_for_many(&order.config.at);
    orders.iter().filter(alone).find_map(|order| {
        let spec = order.config.at.to_string();
        let status = refused.get(spec.as_str())?;
        let reason = status.summary.reason.clone().unwrap_or_default();
        let detail = format!("cannot probe `{spec}`: {reason}");
        Some(
            ProblemKind::CannotProbe
                .with(detail)
                .at(format!("{}/spec", order.pointer)),
        )
    })
}

fn give_names(orders: &[Order], statuses: &[ProbeStatus], names: &mut Names) {
    let mut alike: BTreeMap<&str, VecDeque<ProbeId>> = BTreeMap::new();
    for status in statuses {
        let ids = alike.entry(status.summary.probe.as_str()).or_default();
        ids.push_back(status.id);
    }
    for order in orders {
        if stands_for_many(&order.config.at) {
            continue;
        }
        let spec = order.config.at.to_string();
        let found = alike.get_mut(spec.as_str()).and_then(VecDeque::pop_front);
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
                .find(|order| order.config.at.to_string() == error.spec);
            match to_blame {
                Some(order) => problem.at(format!("{}/spec", order.pointer)),
                None => problem,
            }
        }
        RegisterError::Arm(error) => ProblemKind::CannotChange.with(chain(error)),
    }
}
