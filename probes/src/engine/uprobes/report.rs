//! Hits in programs.

use std::sync::Arc;

use address::{Gpa, Gva};
use events::Tier;
use text::{GuestError, Vcpu};
use vmm::kvm_regs;

use super::Uprobes;
use super::code_table::{CodePage, CodeSite};
use crate::engine::hit_arguments::HitArguments;
use crate::engine::tasks::Position;
use crate::handler::HitContext;
use crate::hit_state::HitState;
use crate::registry::{Missed, Purpose};

/// An instruction that is about to be executed on a hidden page, with the probes there.
#[derive(Debug)]
pub(crate) struct CodeHit {
    pub(crate) sites: Vec<CodeSite>,
    /// The registers in front of the instruction.
    pub(crate) regs: kvm_regs,
}

/// Whether a hidden page is still that of its file.
#[derive(Debug)]
pub(crate) enum OnPage {
    /// The page belongs to another use.
    Outdated,
    /// The probed instruction is about to be executed.
    Hit(CodeHit),
    /// No probe is at the instruction, or the instruction is not on a hidden page.
    NoHit,
}

impl Uprobes {
    /// Looks at the instruction at `gpa`, at which the vCPU stands.
    pub(crate) fn at_instruction(
        &self,
        vcpu: &mut dyn Vcpu,
        gpa: Gpa,
    ) -> Result<OnPage, GuestError> {
        let table = self.hidden.table.load();
        let Some(page) = table.holding(gpa) else {
            return Ok(OnPage::NoHit);
        };
        let sites: Vec<CodeSite> = page.sites_at(gpa.page_offset()).cloned().collect();
        if sites.is_empty() {
            return Ok(OnPage::NoHit);
        }
        if !self.is_current(page, gpa.page()) {
            return Ok(OnPage::Outdated);
        }
        let regs = vcpu.regs()?;
        Ok(OnPage::Hit(CodeHit { sites, regs }))
    }

    /// Whether the page at `gpa` is still in its file.
    fn is_current(&self, page: &CodePage, gpa: Gpa) -> bool {
        let current = self.files.read(&self.running, |reader, _| {
            reader.exists(&page.file) && reader.page(&page.file, page.number) == Some(gpa)
        });
        current.unwrap_or(false)
    }

    /// Counts an exit for each probe on the page at `gpa`.
    pub(crate) fn count_exit(&self, gpa: Gpa) {
        let table = self.hidden.table.load();
        let sites = table.holding(gpa).map(|page| &page.sites);
        for site in sites.into_iter().flatten() {
            site.probe.counters.count_exit();
        }
    }

    /// Counts and reports the executed instruction.
    pub(crate) fn report(
        &self,
        vcpu: &mut dyn Vcpu,
        executed: &CodeHit,
        tier: Tier,
    ) -> Result<(), GuestError> {
        // The first probe that needs the state pays for the request to KVM.
        let mut state = None;
        for CodeSite { probe, symbol, .. } in &executed.sites {
            let regs = executed.regs;
            if probe.only_counts() {
                probe.counters.count_recorded();
                probe.tier.passed_by(tier);
                continue;
            }
            // Filters, aggregates and events read the kernel's data, which the program's `gs` and page tables do not show.
            let state = match &state {
                Some(state) => state,
                None => state.insert(HitState::from(self.running.kernel_state(vcpu)?)),
            };
            let mut hit = HitContext::new(vcpu, &self.running.planter, &self.plants.table, regs);
            hit.set_state(state.clone());
            let mut arguments = HitArguments::new(probe, &self.reporter);
            // The exit is counted at the page.
            let programs = &self.programs;
            if !programs.accepts_within_exit(&mut hit, probe, &mut arguments) {
                continue;
            }
            probe.counters.count_recorded();
            probe.tier.passed_by(tier);
            match &probe.purpose {
                Purpose::Trace => {
                    let (ip, symbol) = (Gva(regs.rip), Arc::clone(symbol));
                    self.records.emit_in_program(&mut hit, probe, ip, symbol)?;
                }
                Purpose::Aggregate(aggregated) => {
                    let position = Position::At(Gva(regs.rip));
                    if !self
                        .programs
                        .add_value(&mut hit, position, &mut arguments, aggregated)
                    {
                        probe.counters.miss(Missed::UnknownTask);
                    }
                }
                // Handlers, injections and returns are refused in programs.
                _ => (),
            }
        }
        Ok(())
    }
}
