//! Readers: the functions by which the guest's kernel reads its own text. They must not find plants.
//!
//! The kernel's kprobes decode and copy instructions, the debuggers print instructions, all through a few functions. Each
//! function has a kernel event probe (`Reader`). If a vCPU enters a reader and plants are in the read range, the vCPU runs
//! the function *alone* until the return, and memory shows the original bytes. No other vCPU runs meanwhile, so no hit is
//! missed. No reader waits for another processor or takes a lock. Where possible, hyprobe makes the reader's copy instead
//! (`reader_copy`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use address::{Gpa, Gva};
use introspect::insn::{MAX_LENGTH_BYTES, decode};
use introspect::{PagingState, read_virt, walk};
use text::{GuestError, Paused, Ran, To, Vcpu};

use crate::engine::plants::Plants;
use crate::engine::reporter::Reporter;
use crate::engine::running::Running;
use crate::engine::watch::Watches;
use crate::handler::HitContext;
use crate::plant::Plant;
use crate::registry::{KernelEvent, Purpose, Reader};

/// The maximum checked length of a read range. The kernel's own copies have a page at most.
pub(crate) const MAX_READ_BYTES: u64 = 64 << 10;

/// The need of a reader at its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReaderNeeds {
    /// Nothing: the read range has no plants.
    Nothing,
    /// A pause of the other vCPUs: the reader runs alone, or plants are first removed.
    Pause,
    /// An immediate return of the given value.
    Answer(i64),
    /// A copy: hyprobe makes the copy, or the reader runs alone.
    Copy,
}

/// A reader at its entry, about to run alone.
#[derive(Debug)]
pub(crate) struct Reading {
    reader: Reader,
    /// The plants in the read range, and the entries of idle readers.
    plants: Vec<Gpa>,
    returns_to: Gva,
    /// The location of `returns_to`.
    stop: Gpa,
}

/// The reader with its entry at `plant`, if any.
fn reader(plant: &Plant) -> Option<Reader> {
    plant
        .probes
        .iter()
        .find_map(|(probe, _)| match probe.purpose {
            Purpose::KernelEvent(KernelEvent::Reader(reader)) => Some(reader),
            _ => None,
        })
}

/// Keeps the kernel's readers of text from plants.
#[derive(Debug)]
pub(crate) struct Readers {
    pub(crate) reporter: Arc<Reporter>,
    pub(crate) running: Arc<Running>,
    pub(crate) plants: Arc<Plants>,
    pub(crate) watches: Arc<Watches>,
    /// Whether a note has reported a reader that did not return in time.
    pub(crate) readers_lost: AtomicBool,
}

impl Readers {
    /// The range read by a reader with these arguments: address and length.
    fn stretch(
        &self,
        paging: &PagingState,
        reader: Reader,
        regs: &vmm::kvm_regs,
    ) -> Option<(Gva, u64)> {
        match reader {
            Reader::CheckProbe | Reader::CheckOptimised => self.function_around(Gva(regs.rdi)),
            Reader::Decode => Some((Gva(regs.rsi), self.instruction_bytes(paging, Gva(regs.rsi)))),
            Reader::Copy => Some((Gva(regs.rsi), regs.rdx.min(MAX_READ_BYTES))),
            Reader::CheckJump | Reader::WriteJumps => None,
        }
    }

    /// The range of the function around `at`, in the kernel's image.
    fn function_around(&self, at: Gva) -> Option<(Gva, u64)> {
        let located = self.running.located.get()?;
        let within = self.running.kernel.symbols().resolve(located.linked(at))?;
        let start = at.wrapping_add(within.offset.wrapping_neg());
        Some((start, within.symbol.size.min(MAX_READ_BYTES)))
    }

    /// The number of bytes to read for the instruction at `at`.
    fn instruction_bytes(&self, paging: &PagingState, at: Gva) -> u64 {
        let mut bytes = [0; MAX_LENGTH_BYTES];
        read_virt(&self.running.planter, paging, at, &mut bytes)
            .ok()
            .and_then(|()| decode(&bytes, at).ok())
            .map_or(MAX_LENGTH_BYTES, |decoded| decoded.len()) as u64
    }

    /// Ends the call with the return value `value`; the vCPU is at the function's entry. Returns whether the return address
    /// was readable.
    pub(crate) fn answer_call(&self, hit: &mut HitContext<'_>, value: i64) -> bool {
        let slot = hit.regs.rsp;
        let Ok(returns_to) = hit.read_u64(Gva(slot)) else {
            return false;
        };
        hit.regs.rax = value.cast_unsigned();
        hit.regs.rsp = slot.wrapping_add(8);
        hit.regs.rip = returns_to;
        true
    }

    /// The need of the reader that `vcpu` enters with these registers. Called at every entry, by any vCPU.
    pub(crate) fn reader_needs(
        &self,
        vcpu: &mut dyn Vcpu,
        reader: Reader,
        regs: &vmm::kvm_regs,
    ) -> Result<ReaderNeeds, GuestError> {
        let paging = vcpu.system_state()?.paging;
        Ok(match (reader, self.stretch(&paging, reader, regs)) {
            (Reader::WriteJumps, _) => ReaderNeeds::Pause,
            (Reader::CheckJump, _) => self.may_jump(&paging, Gva(regs.rdi)),
            (reader, Some((at, len))) if !self.running.plants_in(&paging, at, len).is_empty() => {
                match reader {
                    Reader::Copy => ReaderNeeds::Copy,
                    _ => ReaderNeeds::Pause,
                }
            }
            _ => ReaderNeeds::Nothing,
        })
    }

    /// The run of a reader, if `plant` is the reader's entry, the vCPU is there, and plants are in the read range.
    pub(crate) fn reading(
        &self,
        vcpu: &mut dyn Vcpu,
        plant: &Plant,
    ) -> Result<Option<Reading>, GuestError> {
        let Some(reader) = reader(plant) else {
            return Ok(None);
        };
        let regs = vcpu.regs()?;
        let paging = vcpu.system_state()?.paging;
        let Some((at, len)) = self.stretch(&paging, reader, &regs) else {
            return Ok(None);
        };
        let mut plants = self.running.plants_in(&paging, at, len);
        if plants.is_empty() {
            return Ok(None);
        }
        plants.extend(self.idle_readers());
        let returns_to = self.running.word(&paging, Gva(regs.rsp)).map(Gva);
        let stop = returns_to.and_then(|at| walk(&self.running.planter, &paging, at).ok());
        Ok(returns_to.zip(stop).map(|(returns_to, stop)| Reading {
            reader,
            plants,
            returns_to,
            stop: stop.gpa,
        }))
    }

    /// The entries of readers without other probes. The reader that runs alone may call further readers: no stop is needed
    /// there, since the reader sees no plants.
    fn idle_readers(&self) -> Vec<Gpa> {
        let is_reader =
            |purpose: &Purpose| matches!(purpose, Purpose::KernelEvent(KernelEvent::Reader(_)));
        let table = self.plants.table.load();
        let readers = self
            .plants
            .kernel_event_probes
            .iter()
            .filter(|probe| is_reader(&probe.purpose));
        let entries = readers.filter_map(|probe| {
            let plant = table.at(probe.planted_at()?)?;
            let is_alone = plant
                .probes
                .iter()
                .all(|(probe, _)| is_reader(&probe.purpose));
            (is_alone && !plant.returns).then_some(plant.spot.gpa)
        });
        entries.collect()
    }

    /// Runs the reader to its return, after the vCPU has stepped over the instruction at the entry.
    pub(crate) fn read_alone<V: Vcpu>(
        &self,
        vcpu: &mut V,
        paused: &dyn Paused,
        reading: &Reading,
        run: &mut impl FnMut(&mut V, To<'_>) -> Result<Ran, GuestError>,
    ) -> Result<(), GuestError> {
        let shown = self
            .running
            .planter
            .show_alone(paused, &reading.plants, &[reading.stop])?;
        let ran = run(vcpu, To::Return(reading.returns_to));
        shown.end()?;
        if ran? == Ran::Nowhere && !self.readers_lost.swap(true, Ordering::Relaxed) {
            let function = reading.reader.function();
            self.reporter.note(
                None,
                format!(
                    "the kernel's {function} has not returned in time, and may have read plants"
                ),
            );
        }
        Ok(())
    }
}
