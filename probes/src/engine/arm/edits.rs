//! Edits of plants after a change of the probes. Only the affected sites are edited, so a further probe costs the same
//! beside ten probes as beside ten thousand.

use std::collections::BTreeMap;
use std::sync::Arc;

use address::{Gpa, Gva};
use text::{Paused, PlantError, Planter, Spot};

use crate::debug_registers::{DataRegister, DebugUse, assign_registers};
use crate::plant::Plant;
use crate::plant_table::Table;
use crate::registry::Probe;

/// The probes and return sites to reconcile with the plants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change<'a> {
    /// Probes whose plants may have to be placed, moved or removed.
    pub(crate) probes: &'a [Arc<Probe>],
    /// Probes that lose their plants, in any state.
    pub(crate) dropped: &'a [Arc<Probe>],
    pub(crate) sites: Sites<'a>,
}

/// The return sites to reconcile.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sites<'a> {
    All,
    These(&'a [Gva]),
}

/// The future state of a site.
#[derive(Debug)]
struct Edit {
    spot: Spot,
    /// The length of the instruction; needed if the site has no plant yet.
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

/// Why watched words get no debug registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoRegister {
    #[error(
        "it needs more debug registers than are left: remove a probe that has one, or leave out `hw`, so that the page of the data is protected"
    )]
    Taken,
    /// Some processors report one of two registers that fire at once (QEMU's TCG).
    #[error(
        "another watchpoint has a debug register for some of the bytes, but not for the same: watch the same bytes, or leave out `hw`"
    )]
    Overlap,
    #[error(
        "a debug register cannot watch bytes at an address that is not a multiple of their number"
    )]
    Unaligned,
}

/// The affected sites, while the change is put together.
#[derive(Debug)]
pub(crate) struct Edits<'t> {
    before: &'t Table,
    places: BTreeMap<Gva, Edit>,
    debug: Vec<Plant>,
    /// The watched words that are to have a debug register.
    data: Vec<DataRegister>,
    /// Whether plants are hidden.
    hides: bool,
}

impl<'t> Edits<'t> {
    /// No edits of `before`, but no register of watched words.
    pub(crate) fn new(before: &'t Table, hides: bool) -> Self {
        let only = before.only();
        let debug = only.map(|plant| plant.of_interest_to(plant.probes.clone(), false));
        Self {
            debug: debug.collect(),
            data: Vec::new(),
            hides,
            before,
            places: BTreeMap::new(),
        }
    }

    /// The edit of the site at `at`, if the site has a plant or is to get a plant.
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
        // Other code may be at the address now, elsewhere in memory.
        let edit = self
            .places
            .get_mut(&at)
            .expect("it has just been put there");
        (edit.spot, edit.len) = (spot, len);
        edit
    }

    /// Removes the probe from its present site.
    pub(crate) fn leave(&mut self, probe: &Arc<Probe>) {
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

    /// Adds the probe to the plant at `at`; `ip` is the probed address.
    pub(crate) fn join(&mut self, probe: &Arc<Probe>, ip: Gva, at: Gva, spot: Spot, len: usize) {
        insert(&mut self.place(at, spot, len).probes, probe, ip);
        self.leave_register(at);
    }

    /// Moves the probes of the debug register for `at`, if any, to the hidden plant there: the register does not fire where the emulator executes
    /// the instruction.
    fn leave_register(&mut self, at: Gva) {
        if !self.hides {
            return;
        }
        let in_register = self.debug.iter_mut().filter(|plant| plant.at == at);
        let moved: Vec<_> = in_register
            .flat_map(|plant| std::mem::take(&mut plant.probes))
            .collect();
        if let Some(edit) = self.known(at) {
            for (probe, ip) in &moved {
                insert(&mut edit.probes, probe, *ip);
            }
        }
    }

    /// Whether a plant is or will be at `at`.
    pub(crate) fn has_plant(&mut self, at: Gva) -> bool {
        let edit = self.known(at);
        edit.is_some_and(|edit| edit.returns || !edit.probes.is_empty())
    }

    /// Adds the probe to the debug register for `at`; `ip` is the probed address. Returns `false` if all four registers are
    /// taken.
    pub(crate) fn join_debug(&mut self, probe: &Arc<Probe>, ip: Gva, at: Gva, spot: Spot) -> bool {
        self.debug
            .retain(|plant| plant.at == at || !plant.probes.is_empty());
        let known = self.debug.iter().position(|plant| plant.at == at);
        let index = known.unwrap_or(self.debug.len());
        if known.is_none() {
            if index + self.data.len() >= self.before.debug.len() {
                return false;
            }
            self.debug.push(Plant::new(at, spot));
        }
        // Other code may be at the address now, elsewhere in memory.
        self.debug[index].spot = spot;
        insert(&mut self.debug[index].probes, probe, ip);
        true
    }

    /// Adds the registers of watched words. On an error, none is added.
    pub(crate) fn watch(&mut self, words: Vec<DataRegister>) -> Result<(), NoRegister> {
        self.debug.retain(|plant| !plant.probes.is_empty());
        let mut data = self.data.clone();
        // Nothing else would report these events.
        let stand_ins = self.before.debug.iter().flatten();
        let reserved = stand_ins.filter(|used| is_of_event(used)).count();
        for word in words {
            if let Some(same) = data.iter_mut().find(|other| other.is_of_same(&word)) {
                same.watchpoints.extend(word.watchpoints);
                same.watchpoints.sort_unstable();
            } else if data.iter().any(|other| other.overlaps(&word)) {
                return Err(NoRegister::Overlap);
            } else if reserved + self.debug.len() + data.len() < self.before.debug.len() {
                data.push(word);
            } else {
                return Err(NoRegister::Taken);
            }
        }
        self.data = data;
        Ok(())
    }

    /// Marks `at` as a return site of followed calls.
    pub(crate) fn return_to(&mut self, at: Gva, spot: Spot, len: usize) {
        self.place(at, spot, len).returns = true;
        self.leave_register(at);
    }

    /// Removes the mark of `at` as a return site.
    pub(crate) fn forget_return(&mut self, at: Gva) {
        if let Some(edit) = self.known(at) {
            edit.returns = false;
        }
    }

    /// The addresses of the affected sites.
    pub(crate) fn places(&self) -> Vec<Gva> {
        self.places.keys().copied().collect()
    }

    /// The guest-physical locations of the affected sites.
    pub(crate) fn spots(&self) -> impl Iterator<Item = Spot> {
        self.places.values().map(|edit| edit.spot)
    }

    /// The present plants at the affected sites, if the edits change or remove the plant.
    pub(crate) fn outdated(&self) -> Vec<Arc<Plant>> {
        let is_outdated = |(at, edit): (&Gva, &Edit)| {
            let plant = self.before.at(*at)?;
            (!edit.is_as(plant)).then(|| Arc::clone(plant))
        };
        self.places.iter().filter_map(is_outdated).collect()
    }

    /// Applies the edits to memory, and returns the matching table, and the withdrawn plants that have lost their register, the oldest first. On failure
    /// nothing has changed. Hidden plants change no byte.
    pub(crate) fn apply(
        self,
        paused: &dyn Paused,
        planter: &Planter,
    ) -> Result<(Table, Vec<Arc<Plant>>), PlantError> {
        let (before, hides) = (self.before, self.hides);
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
        if !hides {
            planter.change(paused, &add, &remove)?;
        }
        for plant in fresh.iter().filter_map(|at| table.at(*at)) {
            plant.refresh(planter);
        }
        let data = self.data.into_iter().map(DebugUse::Data);
        let only = self.debug.into_iter();
        let only = only.filter(|plant| !plant.probes.is_empty());
        let only = only.map(|plant| DebugUse::Only(Arc::new(plant)));
        let stand_ins = before.debug.iter().flatten().filter_map(|used| match used {
            DebugUse::StandIn(plant) => table.at(plant.at).cloned().map(DebugUse::StandIn),
            DebugUse::Only(_) | DebugUse::Data(_) => None,
        });
        let wanted: Vec<_> = only.chain(data).collect();
        let mut stand_ins: Vec<_> = stand_ins.collect();
        stand_ins.sort_by_key(is_of_event);
        let left = (wanted.len() + stand_ins.len()).saturating_sub(before.debug.len());
        let (left, kept) = stand_ins.split_at(left.min(stand_ins.len()));
        // A plant that none is left for has been withdrawn before the others.
        let uses = wanted.into_iter().chain(kept.iter().cloned());
        table.debug = assign_registers(uses, &before.debug);
        let left = left.iter().filter_map(|left| left.plant().cloned());
        Ok((table, left.collect()))
    }
}

/// Whether the register is that of a withdrawn plant that reports an event of the kernel to hyprobe.
fn is_of_event(used: &DebugUse) -> bool {
    matches!(used, DebugUse::StandIn(plant) if plant.has_kernel_events())
}

/// Inserts the probe, in the order of registration.
fn insert(probes: &mut Vec<(Arc<Probe>, Gva)>, probe: &Arc<Probe>, ip: Gva) {
    let at = probes.partition_point(|(other, _)| other.id <= probe.id);
    probes.insert(at, (Arc::clone(probe), ip));
}
