//! What a change of the probes makes of the plants. Only the places that it touches are looked at, so that one probe
//! more costs the same beside ten as beside ten thousand.

use std::collections::BTreeMap;
use std::sync::Arc;

use introspect::{Gpa, Gva};

use crate::guest::Paused;
use crate::hit::{DebugRegisters, DebugUse, Plant, Table};
use crate::plant::{PlantError, Planter, Spot};
use crate::registry::Probe;

/// What is to be looked at again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change<'a> {
    /// Probes that may have to be planted, or planted elsewhere, or no more.
    pub(super) probes: &'a [Arc<Probe>],
    /// Probes that are to be planted no more, whatever their state says.
    pub(super) dropped: &'a [Arc<Probe>],
    pub(super) sites: Sites<'a>,
}

/// Return sites to be looked at again.
#[derive(Clone, Copy, Debug)]
pub(super) enum Sites<'a> {
    All,
    These(&'a [Gva]),
}

/// One place, as it will be.
#[derive(Debug)]
struct Edit {
    spot: Spot,
    /// Of the instruction; needed where nothing is planted yet.
    len: usize,
    returns: bool,
    probes: Vec<(Arc<Probe>, Gva)>,
}

impl Edit {
    fn is_as(&self, plant: &Plant) -> bool {
        self.spot == plant.spot
            && self.returns == plant.returns
            && self.probes.len() == plant.probes.len()
            && self
                .probes
                .iter()
                .zip(&plant.probes)
                .all(|((probe, ip), (other, at))| Arc::ptr_eq(probe, other) && ip == at)
    }
}

/// The places that are touched, while the change is put together.
#[derive(Debug)]
pub(super) struct Edits<'t> {
    before: &'t Table,
    places: BTreeMap<Gva, Edit>,
    debug: Vec<Plant>,
}

impl<'t> Edits<'t> {
    pub(super) fn new(before: &'t Table) -> Self {
        let debug = before.debug.iter().flatten().filter_map(|used| match used {
            DebugUse::Only(plant) => Some(plant.of_interest_to(plant.probes.clone(), false)),
            DebugUse::StandIn(_) => None,
        });
        Self {
            debug: debug.collect(),
            before,
            places: BTreeMap::new(),
        }
    }

    /// The place at `at`, if anything is planted there or is to be.
    fn known(&mut self, at: Gva) -> Option<&mut Edit> {
        match self.places.entry(at) {
            std::collections::btree_map::Entry::Occupied(entry) => Some(entry.into_mut()),
            std::collections::btree_map::Entry::Vacant(entry) => {
                let plant = self.before.at(at)?;
                Some(entry.insert(Edit {
                    spot: plant.spot,
                    len: 1,
                    returns: plant.returns,
                    probes: plant.probes.clone(),
                }))
            }
        }
    }

    fn place(&mut self, at: Gva, spot: Spot, len: usize) -> &mut Edit {
        if self.known(at).is_none() {
            self.places.insert(
                at,
                Edit {
                    spot,
                    len,
                    returns: false,
                    probes: Vec::new(),
                },
            );
        }
        // Other code may lie there now, elsewhere in memory.
        let edit = self
            .places
            .get_mut(&at)
            .expect("it has just been put there");
        (edit.spot, edit.len) = (spot, len);
        edit
    }

    /// Takes the probe away from where it is.
    pub(super) fn leave(&mut self, probe: &Arc<Probe>) {
        let Some(at) = probe.planted_at() else {
            return;
        };
        let stays = |(other, _): &(Arc<Probe>, Gva)| !Arc::ptr_eq(other, probe);
        if let Some(edit) = self.known(at) {
            edit.probes.retain(stays);
        }
        for plant in self.debug.iter_mut().filter(|plant| plant.at == at) {
            plant.probes.retain(stays);
        }
    }

    /// A plant at `at` tells the probe of what is at `ip`.
    pub(super) fn join(&mut self, probe: &Arc<Probe>, ip: Gva, at: Gva, spot: Spot, len: usize) {
        insert(&mut self.place(at, spot, len).probes, probe, ip);
    }

    /// A debug register at `at` does; `false` if all four are taken.
    pub(super) fn join_debug(&mut self, probe: &Arc<Probe>, ip: Gva, at: Gva, spot: Spot) -> bool {
        self.debug
            .retain(|plant| plant.at == at || !plant.probes.is_empty());
        let known = self.debug.iter().position(|plant| plant.at == at);
        let index = known.unwrap_or(self.debug.len());
        if known.is_none() {
            if index == 4 {
                return false;
            }
            self.debug.push(Plant::new(at, spot));
        }
        insert(&mut self.debug[index].probes, probe, ip);
        true
    }

    /// Followed calls return to `at`.
    pub(super) fn return_to(&mut self, at: Gva, spot: Spot, len: usize) {
        self.place(at, spot, len).returns = true;
    }

    /// Followed calls return to `at` no longer.
    pub(super) fn forget_return(&mut self, at: Gva) {
        if let Some(edit) = self.known(at) {
            edit.returns = false;
        }
    }

    /// The places that are looked at.
    pub(super) fn places(&self) -> Vec<Gva> {
        self.places.keys().copied().collect()
    }

    /// Where they lie.
    pub(super) fn spots(&self) -> impl Iterator<Item = Spot> {
        self.places.values().map(|edit| edit.spot)
    }

    /// The plants among them that will be others, or go.
    pub(super) fn outdated(&self) -> Vec<Arc<Plant>> {
        let is_outdated = |(at, edit): (&Gva, &Edit)| {
            let plant = self.before.at(*at)?;
            (!edit.is_as(plant)).then(|| Arc::clone(plant))
        };
        self.places.iter().filter_map(is_outdated).collect()
    }

    /// Makes memory what the places ask for, and returns the table that goes with it. When it fails nothing has
    /// changed.
    pub(super) fn apply(self, paused: &dyn Paused, planter: &Planter) -> Result<Table, PlantError> {
        let before = self.before;
        let mut remove: Vec<Gpa> = Vec::new();
        let mut add: Vec<(Spot, usize)> = Vec::new();
        let mut table = before.clone();
        let mut fresh: Vec<Gva> = Vec::new();
        for (at, edit) in self.places {
            let known = before.at(at);
            let is_empty = edit.probes.is_empty() && !edit.returns;
            if known.is_some_and(|plant| !is_empty && edit.is_as(plant)) {
                continue;
            }
            let moved = known.filter(|plant| is_empty || plant.spot != edit.spot);
            remove.extend(moved.map(|plant| plant.spot.gpa));
            if is_empty {
                table.remove(at);
                continue;
            }
            let same = known.filter(|plant| plant.spot == edit.spot);
            if same.is_none() {
                add.push((edit.spot, edit.len));
                fresh.push(at);
            }
            let new;
            let plant = match same {
                Some(plant) => plant,
                None => {
                    new = Plant::new(at, edit.spot);
                    &new
                }
            };
            table.put(Arc::new(plant.of_interest_to(edit.probes, edit.returns)));
        }
        planter.change(paused, &add, &remove)?;
        for plant in fresh.iter().filter_map(|at| table.at(*at)) {
            plant.refresh(planter);
        }
        table.debug = debug_registers(self.debug, before, &table, paused, planter);
        Ok(table)
    }
}

/// In the order of registration.
fn insert(probes: &mut Vec<(Arc<Probe>, Gva)>, probe: &Arc<Probe>, ip: Gva) {
    let at = probes.partition_point(|(other, _)| other.id <= probe.id);
    probes.insert(at, (Arc::clone(probe), ip));
}

/// Debug registers that stand in for a plant go on doing so, as far as there is room beside the others; a plant that
/// loses its stand-in would stay withdrawn, so it is planted again.
fn debug_registers(
    only: Vec<Plant>,
    before: &Table,
    after: &Table,
    paused: &dyn Paused,
    planter: &Planter,
) -> DebugRegisters {
    let only = only
        .into_iter()
        .filter(|plant| !plant.probes.is_empty())
        .map(|plant| DebugUse::Only(Arc::new(plant)));
    let stand_ins = before.debug.iter().flatten().filter_map(|used| match used {
        DebugUse::StandIn(plant) => after.at(plant.at).cloned().map(DebugUse::StandIn),
        DebugUse::Only(_) => None,
    });
    let mut uses = only.chain(stand_ins);
    let debug = std::array::from_fn(|_| uses.next());
    for left in uses {
        // What was shown while it stood in can be shown no longer.
        let _ = planter.replant(paused, left.plant().spot.gpa);
    }
    debug
}
