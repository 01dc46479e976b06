//! Hits in programs.

use std::sync::Arc;

use address::{Gpa, Gva};
use events::Tier;
use introspect::insn::Decoded;
use text::{GuestError, Vcpu};

use super::Uprobes;
use super::code_hit::{CodeHit, Leaving, OnPage, ProgramState};
use super::code_table::{CodePage, CodeSite};
use super::mark_values::MarkValues;
use crate::engine::hit_arguments::HitArguments;
use crate::engine::tasks::Position;
use crate::hit_state::HitState;
use crate::registry::Purpose;

impl Uprobes {
    /// Looks at the instruction at `gpa`, at which the vCPU stands; `None` if it cannot be decoded.
    pub(crate) fn at_instruction(
        &self,
        vcpu: &mut dyn Vcpu,
        gpa: Gpa,
        decoded: Option<&Decoded>,
    ) -> Result<OnPage, GuestError> {
        let table = self.hidden.table.load();
        let Some(page) = table.holding(gpa) else {
            return Ok(OnPage::NoHit);
        };
        let at = page.offset_of(gpa.page_offset());
        let leaving = decoded.map_or(Leaving::Never, Leaving::of);
        let mut may_leave = false;
        if leaving != Leaving::Never && !self.calls.is_empty() {
            may_leave = self.calls.has_any_at(vcpu.regs()?.rsp);
        }
        let sites: Vec<CodeSite> = page.sites_at(at, may_leave).cloned().collect();
        let counter = decoded.and_then(|decoded| page.counter_read_by(decoded));
        if sites.is_empty() && counter.is_none() {
            return Ok(OnPage::NoHit);
        }
        if !self.is_current(page, gpa.page()) {
            return Ok(OnPage::Outdated);
        }
        let regs = vcpu.regs()?;
        Ok(OnPage::Hit(CodeHit {
            sites,
            counter: counter.map(Box::new),
            at,
            leaving,
            regs,
            state: None,
        }))
    }

    /// The system registers of a vCPU in a program.
    pub(crate) fn program_state(&self, vcpu: &mut dyn Vcpu) -> Result<ProgramState, GuestError> {
        Ok(ProgramState {
            paging: vcpu.system_state()?.paging,
            kernel: HitState::from(self.running.kernel_state(vcpu)?),
        })
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
        let page = table.holding(gpa).into_iter();
        for probe in page.flat_map(|page| &page.probes) {
            probe.counters.count_exit();
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
        let mut state = executed.state.as_deref().cloned();
        for site in &executed.sites {
            let CodeSite { probe, symbol, .. } = site;
            let regs = executed.regs;
            if let Purpose::Return(purpose) = &probe.purpose {
                self.follow(vcpu, executed, site, purpose, tier, &mut state)?;
                continue;
            }
            if probe.only_counts() {
                probe.counters.count_recorded();
                probe.tier.passed_by(tier);
                continue;
            }
            let depth = match self.calls.is_empty() {
                true => 0,
                false => {
                    let program = self.state_once(vcpu, &mut state)?;
                    let position = Position::At(Gva(regs.rip));
                    let task = self.records.tasks.address(&program.kernel, position);
                    self.calls.enclosing(program.paging.root(), task, regs.rsp)
                }
            };
            let values = match &site.operands {
                None => None,
                Some(operands) => {
                    let paging = self.state_once(vcpu, &mut state)?.paging;
                    let memory = &self.running.planter;
                    Some(MarkValues::read(memory, &paging, &regs, operands))
                }
            };
            let mut hit = self.context(vcpu, regs, &mut state)?;
            let mut arguments = match &values {
                Some(values) => HitArguments::of_mark(probe, &self.reporter, values.arguments()),
                None => HitArguments::new(probe, &self.reporter),
            };
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
                    let shown = values.map(|values| {
                        let arguments = values.arguments().map(|value| value.unwrap_or(0));
                        (values.params(), arguments)
                    });
                    self.records
                        .emit_in_program(&mut hit, probe, ip, symbol, depth, shown)?;
                }
                Purpose::Aggregate(aggregated) => {
                    let position = Position::At(Gva(regs.rip));
                    if !self
                        .programs
                        .add_value(&mut hit, position, &mut arguments, aggregated)
                    {
                        probe.counters.miss(arguments.missed());
                    }
                }
                // Handlers and injections are refused in programs.
                _ => (),
            }
        }
        Ok(())
    }
}
