//! Plants at return sites.

use std::collections::BTreeSet;
use std::sync::Arc;

use address::Gva;
use text::Paused;

use crate::engine::arm::Armer;
use crate::engine::optimise::Optimiser;
use crate::engine::plants::Plants;
use crate::engine::records::Records;
use crate::engine::reporter::Reporter;
use crate::engine::returns::following::Following;
use crate::engine::returns::landings::NoLandings;
use crate::engine::returns::return_sites::ReturnSites;
use crate::plant::Plant;
use crate::registry::Purpose;

/// Plants and removes return sites. The other vCPUs are paused.
#[derive(Debug)]
pub(crate) struct SitePlanter {
    pub(crate) reporter: Arc<Reporter>,
    pub(crate) plants: Arc<Plants>,
    pub(crate) records: Arc<Records>,
    pub(crate) following: Arc<Following>,
    pub(crate) return_sites: Arc<ReturnSites>,
    pub(crate) optimiser: Arc<Optimiser>,
    pub(crate) armer: Arc<Armer>,
}

impl SitePlanter {
    /// Plants the return sites of the calls entered at `plant`.
    pub(crate) fn plant_return_sites(&self, paused: &dyn Paused, plant: &Plant) {
        if !plant
            .probes
            .iter()
            .any(|(probe, _)| matches!(probe.purpose, Purpose::Return(_)))
        {
            return;
        }
        self.plant_asked_sites(paused);
    }

    /// Plants the return sites of all calls entered since the last check.
    pub(crate) fn plant_asked_sites(&self, paused: &dyn Paused) {
        let table = self.plants.table.load_full();
        let mut asked = self.return_sites.take_asked();
        asked.retain(|returns_to| !self.following.shows_returns_to(*returns_to, &table));
        let mut wanted = BTreeSet::new();
        let entries = self.return_sites.landings.entries();
        asked.retain(
            |returns_to| match self.following.find_landings(*returns_to) {
                Ok(landings) => {
                    wanted.extend(landings);
                    true
                }
                Err(NoLandings) => {
                    if !self.return_sites.landings.are_none(*returns_to) {
                        self.return_sites.rule_out(*returns_to);
                    }
                    self.following.lose_calls_to(*returns_to);
                    false
                }
            },
        );
        if wanted.is_empty() {
            return;
        }
        self.unoptimise_new_entries(paused, &entries);
        self.return_sites.lock().extend(&wanted);
        let wanted: Vec<Gva> = wanted.into_iter().collect();
        if let Err(error) = self.armer.change_sites(paused, &wanted) {
            self.reporter
                .note(None, format!("a return site cannot be planted: {error}"));
            for returns_to in asked {
                self.return_sites.rule_out(returns_to);
                self.following.lose_calls_to(returns_to);
            }
        }
    }

    /// Removes detours at functions that became landings of static calls: their records lack the top of the stack.
    fn unoptimise_new_entries(&self, paused: &dyn Paused, before: &BTreeSet<Gva>) {
        let table = self.plants.table.load_full();
        let entries = self.return_sites.landings.entries();
        for plant in entries.difference(before).filter_map(|at| table.at(*at)) {
            if let Err(error) = self.optimiser.unoptimise(paused, plant) {
                self.reporter.note(
                    None,
                    format!("returns to {} may be missed: {error}", plant.at),
                );
            }
        }
    }

    /// Removes the plants from return sites without calls in flight. The next call with such a return address plants the
    /// site again.
    pub(crate) fn prune_return_sites(&self, paused: &dyn Paused) {
        self.records.take_out_records();
        let landings = |returns_to: Gva| self.return_sites.landings.of(returns_to);
        let returns = self.following.calls.return_sites();
        let wanted: BTreeSet<Gva> = returns.into_iter().flat_map(landings).collect();
        let left = self.return_sites.retain(|site| wanted.contains(&site));
        if left.is_empty() {
            return;
        }
        if let Err(error) = self.armer.change_sites(paused, &left) {
            self.reporter
                .note(None, format!("return sites stay planted: {error}"));
        }
    }
}
