//! What is to be planted, in comparison with what is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use introspect::{Gpa, Gva};

use crate::guest::Paused;
use crate::hit::{DebugRegisters, DebugUse, Plant, Table};
use crate::plant::{Planter, Spot};

/// What is to be planted, while it is put together.
pub(super) struct Wanted<'t> {
    before: &'t Table,
    pub(super) plants: BTreeMap<Gva, Plant>,
    debug: Vec<Plant>,
    /// Plants that are new.
    pub(super) add: Vec<(Spot, usize)>,
}

impl<'t> Wanted<'t> {
    pub(super) fn new(before: &'t Table) -> Self {
        Self {
            before,
            plants: BTreeMap::new(),
            debug: Vec::new(),
            add: Vec::new(),
        }
    }

    pub(super) fn plant(&mut self, at: Gva, spot: Spot, len: usize) -> &mut Plant {
        let (before, add) = (self.before, &mut self.add);
        self.plants
            .entry(at)
            .or_insert_with(|| match before.at(at) {
                Some(plant) if plant.spot == spot => plant.emptied(),
                _ => {
                    add.push((spot, len));
                    Plant::new(at, spot)
                }
            })
    }

    pub(super) fn debug(&mut self, at: Gva, spot: Spot) -> Option<&mut Plant> {
        let known = self.debug.iter().position(|plant| plant.at == at);
        let index = match known {
            Some(index) => index,
            None if self.debug.len() < 4 => {
                self.debug.push(Plant::new(at, spot));
                self.debug.len() - 1
            }
            None => return None,
        };
        self.debug.get_mut(index)
    }

    /// Debug registers that stand in for a plant go on doing so, as far as there is room beside the others; a plant
    /// that loses its stand-in would stay withdrawn, so it is planted again.
    pub(super) fn finish(
        self,
        paused: &dyn Paused,
        before: &Table,
        planter: &Planter,
    ) -> (Vec<Arc<Plant>>, DebugRegisters) {
        let new: BTreeSet<Gpa> = self.add.iter().map(|(spot, _)| spot.gpa).collect();
        let plants: BTreeMap<Gva, Arc<Plant>> = self
            .plants
            .into_iter()
            .map(|(at, plant)| {
                if new.contains(&plant.spot.gpa) {
                    plant.refresh(planter);
                }
                (at, Arc::new(plant))
            })
            .collect();
        let only = self
            .debug
            .into_iter()
            .map(|plant| DebugUse::Only(Arc::new(plant)));
        let stand_ins = before.debug.iter().flatten().filter_map(|used| match used {
            DebugUse::StandIn(plant) => plants.get(&plant.at).cloned().map(DebugUse::StandIn),
            DebugUse::Only(_) => None,
        });
        let mut uses = only.chain(stand_ins);
        let debug = std::array::from_fn(|_| uses.next());
        for left in uses {
            // What was shown while it stood in can be shown no longer.
            let _ = planter.replant(paused, left.plant().spot.gpa);
        }
        (plants.into_values().collect(), debug)
    }
}
