//! The stepped tier: the hardware executes an instruction in place.
//!
//! With the other vCPUs paused, memory shows the original instruction, and a stop at every possible next instruction of the
//! vCPU: the successors of the instruction, and the first instruction of each exception's handler. The vCPU runs until the
//! first stop, without a change of any flag. Then memory shows the former bytes again.

use address::{Gpa, Gva};
use events::Tier;
use introspect::idt::{SYNCHRONOUS_VECTORS, pushes_error_code};
use introspect::insn::{Decoded, Next};
use introspect::{Gate, Idt, InterruptFrame, PagingState, walk};
use text::{GuestError, InstructionFault, Paused, Planter, Ran, Spot, To, Vcpu, next_places};
use vmm::{kvm_regs, kvm_sregs};

use crate::engine::hits::executor::{Executor, clear_resume_flag};
use crate::handler::FaultOutcome;
use crate::plant::Plant;
use crate::registry::Purpose;

const DEBUG: u8 = 1;
pub(crate) const PAGE_FAULT: u8 = 14;
/// The first vector above the exceptions.
const FIRST_INTERRUPT: u8 = 32;
const NMI: u8 = 2;
/// The privilege level of programs.
const PROGRAM: u8 = 3;
/// RFLAGS.RF, which the processor sets in the frame of a fault.
const RESUME_FLAG: u64 = 1 << 16;

/// The possible next addresses of a vCPU.
#[derive(Debug, Default)]
struct Places {
    /// The successors of the instruction.
    next: Vec<Gva>,
    /// The handlers of possible exceptions; also of interrupts, unless interrupts are held back.
    gates: Vec<Gate>,
    /// The locations of all addresses above, except locations within the instruction.
    stops: Vec<Gpa>,
}

/// Whether the hardware has executed the instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InPlace {
    Executed,
    /// The instruction has raised the exception, and is executed again behind the handler.
    Faulted {
        vector: Option<u8>,
    },
    /// An interrupt came before.
    NotExecuted,
    /// The vCPU has reached no stop, or the target of the instruction could not be read: the vCPU may have executed further instructions.
    Unknown,
}

/// The outcome of the instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InPlaceOutcome {
    /// The instruction has been executed. After `int n`, the vCPU is in the handler.
    Behind,
    /// The instruction has raised an exception, and the guest's handler is about to begin.
    Faulted {
        /// `None` if several vectors have the same handler.
        vector: Option<u8>,
        frame: InterruptFrame,
    },
    /// The vCPU is elsewhere. If the instruction was not executed, the vCPU comes back.
    Elsewhere,
}

impl Executor {
    /// Lets the hardware execute the instruction at `rip`, the vCPU's RIP, and calls the handlers for the outcome. `run`
    /// runs the vCPU until the next instruction is at any of the given addresses.
    pub(crate) fn execute_in_place<V: Vcpu>(
        &self,
        vcpu: &mut V,
        paused: &dyn Paused,
        plant: &Plant,
        decoded: Option<&Decoded>,
        rip: Gva,
        run: &mut impl FnMut(&mut V, To<'_>) -> Result<Ran, GuestError>,
    ) -> Result<InPlace, GuestError> {
        let regs = vcpu.regs()?;
        let sregs = vcpu.sregs()?;
        let places = self.places(vcpu, regs, &sregs, plant.spot, decoded)?;
        let addresses: Vec<Gva> = places.addresses().collect();
        if sregs.ss.dpl == PROGRAM && places.next.contains(&rip) {
            // The debug register of the stop would fire in front of the instruction, too.
            let rflags = regs.rflags | RESUME_FLAG;
            vcpu.set_regs(&kvm_regs { rflags, ..regs })?;
        }
        let shown = self
            .running
            .planter
            .show_alone(paused, &[plant.spot.gpa], &places.stops)?;
        let ran = run(vcpu, To::Next(&addresses));
        // First of all, even if the run has failed.
        shown.end()?;
        let Ran::At(at) = ran? else {
            return Ok(InPlace::Unknown);
        };
        for (probe, _) in &plant.probes {
            probe.counters.count_exit();
        }
        match self.in_place_outcome(vcpu, &places, &regs, rip, at)? {
            InPlaceOutcome::Behind => {
                self.after(vcpu, plant, Tier::Stepped)?;
                Ok(match places.next.is_empty() {
                    true => InPlace::Unknown,
                    false => InPlace::Executed,
                })
            }
            InPlaceOutcome::Faulted { vector, frame } => {
                self.call_fault_handlers(vcpu, plant, &regs, &sregs, vector, &frame)?;
                Ok(InPlace::Faulted { vector })
            }
            InPlaceOutcome::Elsewhere => Ok(InPlace::NotExecuted),
        }
    }

    /// The possible addresses of the vCPU after the instruction at its RIP; `spot` is the location of the instruction.
    fn places(
        &self,
        vcpu: &mut dyn Vcpu,
        regs: kvm_regs,
        sregs: &kvm_sregs,
        spot: Spot,
        decoded: Option<&Decoded>,
    ) -> Result<Places, GuestError> {
        let mut places = Places::default();
        let state = paging(sregs);
        let idt = Idt {
            base: Gva(sregs.idt.base),
            limit: sregs.idt.limit,
        };
        let all: Vec<u8> = if self.running.abilities.holds_interrupts {
            SYNCHRONOUS_VECTORS.to_vec()
        } else {
            let asynchronous = |vector: &u8| *vector == NMI || *vector >= FIRST_INTERRUPT;
            let raised = |vector: &u8| SYNCHRONOUS_VECTORS.contains(vector);
            (0..=u8::MAX)
                .filter(|vector| asynchronous(vector) || raised(vector))
                .collect()
        };
        places.gates = idt.gates(&self.running.planter, &state, &all);
        let (memory, features) = (
            self.running.memory.as_ref(),
            self.running.abilities.features,
        );
        let (next, tables) = match decoded {
            Some(decoded) => next_places(
                vcpu,
                regs,
                memory,
                &self.running.planter,
                features,
                decoded,
                state,
            )?,
            None => (Vec::new(), None),
        };
        for next in next {
            let target = match next {
                // The fetch faults, and a gate stops the vCPU. A program could choose any byte of the kernel for a plant.
                Next::At(at) if sregs.ss.dpl == PROGRAM && at.0 >> 63 != 0 => None,
                Next::At(at) => Some(at),
                Next::Msr(index) => Some(Gva(vcpu.read_msr(index)?)),
                Next::Gate(vector) => idt.target(&self.running.planter, &state, vector),
            };
            places.next.extend(target);
        }
        if decoded.is_none() && self.running.hides_plants() {
            // Where the instruction ends is not known: the vCPU stops at the next plant of the page, or of the page behind.
            let table = self.plants.table.load();
            let pages = std::iter::once(spot.gpa).chain(spot.beyond);
            let plants = pages
                .flat_map(|page| table.plants_on(page))
                .chain(table.only());
            let others = plants.filter(|plant| plant.spot != spot);
            places.next.extend(others.map(|plant| plant.at));
        }
        let len = decoded.map_or(1, Decoded::len);
        // In ring 3 a plant would raise an exception: debug registers stop the vCPU there.
        let can_plant = |at: Gva| sregs.ss.dpl != PROGRAM || at.0 >> 63 != 0;
        for state in std::iter::once(state).chain(tables) {
            let planter = &self.running.planter;
            places.add_stops(planter, &state, can_plant, |gpa| spot.holds(gpa, len));
        }
        Ok(places)
    }

    /// The outcome of the instruction at `rip`, by the vCPU's present address `at`.
    fn in_place_outcome(
        &self,
        vcpu: &mut dyn Vcpu,
        places: &Places,
        before: &kvm_regs,
        rip: Gva,
        at: Gva,
    ) -> Result<InPlaceOutcome, GuestError> {
        let follows = places.next.contains(&at);
        let regs = vcpu.regs()?;
        let mut gates = places.gates.iter().filter(|gate| gate.target == at);
        if gates.clone().next().is_none() || (follows && regs.rsp == before.rsp) {
            return Ok(InPlaceOutcome::Behind);
        }
        let state = paging(&vcpu.sregs()?);
        let Some(frame) = InterruptFrame::read(&self.running.planter, &state, regs.rsp) else {
            return Ok(if follows {
                InPlaceOutcome::Behind
            } else {
                InPlaceOutcome::Elsewhere
            });
        };
        if frame.rip != rip {
            return Ok(InPlaceOutcome::Behind);
        }
        let has_error_code = frame.error_code.is_some();
        let raised = |gate: &&Gate| {
            let interrupt = gate.vector >= FIRST_INTERRUPT || gate.vector == NMI;
            !interrupt && pushes_error_code(gate.vector) == has_error_code
        };
        let mut raised = gates.by_ref().filter(raised);
        let vector = raised.next().map(|gate| gate.vector);
        let ambiguous = raised.next().is_some();
        Ok(match vector {
            None => InPlaceOutcome::Elsewhere,
            vector => InPlaceOutcome::Faulted {
                vector: vector.filter(|_| !ambiguous),
                frame,
            },
        })
    }

    /// Calls the fault-handlers after an exception of the instruction: the vCPU is at the first instruction of the guest's
    /// handler. `before` and `sregs` are the registers before the instruction.
    fn call_fault_handlers(
        &self,
        vcpu: &mut dyn Vcpu,
        plant: &Plant,
        before: &kvm_regs,
        sregs: &kvm_sregs,
        vector: Option<u8>,
        frame: &InterruptFrame,
    ) -> Result<(), GuestError> {
        // A debug exception in front of an instruction is not an exception of the instruction.
        let Some(vector) = vector.filter(|vector| *vector != DEBUG) else {
            return Ok(());
        };
        let mut purposes = plant.probes.iter().map(|(probe, _)| &probe.purpose);
        if !purposes.any(|purpose| matches!(purpose, Purpose::Handle(_))) {
            return Ok(());
        }
        let after = vcpu.regs()?;
        let fault = InstructionFault {
            vector,
            error_code: frame.error_code.unwrap_or(0),
            address: match vector {
                PAGE_FAULT => Gva(vcpu.sregs()?.cr2),
                _ => Gva(0),
            },
        };
        // A repeated instruction may have been executed in part.
        let at_fault = kvm_regs {
            rip: frame.rip.0,
            rsp: frame.rsp,
            rflags: (frame.rflags & !RESUME_FLAG) | (before.rflags & RESUME_FLAG),
            ..after
        };
        let offered = self.offer_fault(vcpu, plant, fault, at_fault);
        if offered.outcome == FaultOutcome::Swallowed || offered.changed {
            vcpu.set_sregs(sregs)?;
            vcpu.set_regs(&offered.regs)?;
        }
        if offered.outcome == FaultOutcome::Swallowed {
            clear_resume_flag(vcpu)?;
        }
        if offered.outcome == FaultOutcome::ToGuest && offered.changed {
            vcpu.inject(fault)?;
        }
        Ok(())
    }
}

impl Places {
    /// Adds the locations of the addresses, by the page tables in `state`. An unmapped address needs no stop: the processor
    /// raises a page fault.
    fn add_stops(
        &mut self,
        planter: &Planter,
        state: &PagingState,
        can_plant: impl Fn(Gva) -> bool,
        is_excluded: impl Fn(Gpa) -> bool,
    ) {
        let mut addresses: Vec<Gva> = self.addresses().filter(|at| can_plant(*at)).collect();
        addresses.sort_unstable();
        addresses.dedup();
        // Handlers lie close together, so few page walks are needed.
        let pages = addresses.chunk_by(|a, b| a.page() == b.page());
        for (page, on_page) in pages.filter_map(|on_page| Some((*on_page.first()?, on_page))) {
            let Ok(found) = walk(planter, state, page.page()) else {
                continue;
            };
            for at in on_page {
                let gpa = found.gpa.wrapping_add(at.page_offset());
                if !is_excluded(gpa) && !self.stops.contains(&gpa) {
                    self.stops.push(gpa);
                }
            }
        }
    }

    fn addresses(&self) -> impl Iterator<Item = Gva> {
        let gates = self.gates.iter().map(|gate| gate.target);
        self.next.iter().copied().chain(gates)
    }
}

fn paging(sregs: &kvm_sregs) -> PagingState {
    PagingState {
        cr0: sregs.cr0,
        cr3: sregs.cr3,
        cr4: sregs.cr4,
        efer: sregs.efer,
    }
}
