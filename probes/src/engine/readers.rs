//! The guest's kernel reads its own text, and must not find plants there.
//!
//! Its kprobes decode and copy instructions, its debuggers print them. The few functions by which it does that are
//! milestones (`Reader`): a vCPU that enters one to read a stretch with plants in it runs that function *alone*, with
//! the guest's own bytes to be seen there, until it returns. Nobody else runs meanwhile, so no hit is missed. None of
//! the functions waits for another processor or takes a lock. A copy is made in its stead where that can be
//! (`reader_copy`).

use std::sync::atomic::Ordering;

use introspect::insn::{MAX_LENGTH_BYTES, decode};
use introspect::{Gpa, Gva, PagingState, read_virt, walk};

use super::Engine;
use crate::guest::{GuestError, Paused, Ran, To, Vcpu};
use crate::handler::HitContext;
use crate::hit::Plant;
use crate::registry::{Milestone, Purpose, Reader};

/// What is read is looked at so far and no further. The kernel's own copies are of a page at the most.
pub(super) const MAX_READ_BYTES: u64 = 64 << 10;
const PAGE_BYTES: u64 = 4096;

/// What a reader needs at its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReaderNeeds {
    /// Nothing: there are no plants where it reads.
    Nothing,
    /// To run alone, or to have the others paused while something is done in its stead.
    Pause,
    /// To return this at once.
    Answer(i64),
    /// A copy, made in its stead or by itself alone.
    Copy,
}

/// A reader at its entry, which is to run alone.
#[derive(Debug)]
pub(super) struct Reading {
    reader: Reader,
    /// Plants in what it reads.
    plants: Vec<Gpa>,
    returns_to: Gva,
    /// The same.
    stop: Gpa,
}

/// The reader whose entry `plant` is.
fn reader(plant: &Plant) -> Option<Reader> {
    plant
        .probes
        .iter()
        .find_map(|(probe, _)| match probe.purpose {
            Purpose::Milestone(Milestone::Reader(reader)) => Some(reader),
            _ => None,
        })
}

impl Engine {
    /// The stretch that a reader with these arguments reads: address and length.
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

    /// The function of the kernel proper that `at` is in.
    fn function_around(&self, at: Gva) -> Option<(Gva, u64)> {
        let located = self.located.get()?;
        let within = self.kernel.symbols().resolve(located.linked(at))?;
        let start = at.wrapping_add(within.offset.wrapping_neg());
        Some((start, within.symbol.size.min(MAX_READ_BYTES)))
    }

    /// So many bytes are looked at to decode the instruction at `at`.
    fn instruction_bytes(&self, paging: &PagingState, at: Gva) -> u64 {
        let mut bytes = [0; MAX_LENGTH_BYTES];
        read_virt(&self.planter, paging, at, &mut bytes)
            .ok()
            .and_then(|()| decode(&bytes, at).ok())
            .map_or(MAX_LENGTH_BYTES, |decoded| decoded.len()) as u64
    }

    /// Makes the call whose entry the vCPU is at return `value` at once. Says whether that could be done.
    pub(super) fn answer_call(&self, hit: &mut HitContext<'_>, value: i64) -> bool {
        let slot = hit.regs.rsp;
        let Ok(returns_to) = hit.read_u64(Gva(slot)) else {
            return false;
        };
        hit.regs.rax = value.cast_unsigned();
        hit.regs.rsp = slot.wrapping_add(8);
        hit.regs.rip = returns_to;
        true
    }

    /// What the reader that `vcpu` enters with these registers needs. Called for every entry, by any vCPU.
    pub(super) fn reader_needs(
        &self,
        vcpu: &mut dyn Vcpu,
        reader: Reader,
        regs: &vmm::kvm_regs,
    ) -> Result<ReaderNeeds, GuestError> {
        let paging = vcpu.system_state()?.paging;
        Ok(match (reader, self.stretch(&paging, reader, regs)) {
            (Reader::WriteJumps, _) => ReaderNeeds::Pause,
            (Reader::CheckJump, _) => self.may_jump(&paging, Gva(regs.rdi)),
            (reader, Some((at, len))) if !self.plants_in(&paging, at, len).is_empty() => {
                match reader {
                    Reader::Copy => ReaderNeeds::Copy,
                    _ => ReaderNeeds::Pause,
                }
            }
            _ => ReaderNeeds::Nothing,
        })
    }

    /// The plants that memory shows in `len` bytes from `at` on.
    fn plants_in(&self, paging: &PagingState, at: Gva, len: u64) -> Vec<Gpa> {
        self.in_memory(paging, at, len, |gpa, len| self.planter.shown(gpa, len))
    }

    /// What there is in the stretches of guest-physical memory that `len` bytes from `at` on lie in.
    pub(super) fn in_memory(
        &self,
        paging: &PagingState,
        at: Gva,
        len: u64,
        what: impl Fn(Gpa, usize) -> Vec<Gpa>,
    ) -> Vec<Gpa> {
        let mut found = Vec::new();
        let mut done = 0;
        while done < len {
            let at = at.wrapping_add(done);
            let here = (PAGE_BYTES - at.page_offset()).min(len - done);
            if let Ok(translated) = walk(&self.planter, paging, at) {
                found.extend(what(translated.gpa, usize::try_from(here).unwrap_or(0)));
            }
            done += here;
        }
        found
    }

    pub(super) fn word(&self, paging: &PagingState, at: Gva) -> Option<u64> {
        let mut bytes = [0; 8];
        read_virt(&self.planter, paging, at, &mut bytes).ok()?;
        Some(u64::from_le_bytes(bytes))
    }

    /// If `plant` is the entry of a reader that is about to read plants, and `vcpu` is there: how it is to run.
    pub(super) fn reading(
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
        let mut plants = self.plants_in(&paging, at, len);
        if plants.is_empty() {
            return Ok(None);
        }
        plants.extend(self.idle_readers());
        let returns_to = self.word(&paging, Gva(regs.rsp)).map(Gva);
        let stop = returns_to.and_then(|at| walk(&self.planter, &paging, at).ok());
        Ok(returns_to.zip(stop).map(|(returns_to, stop)| Reading {
            reader,
            plants,
            returns_to,
            stop: stop.gpa,
        }))
    }

    /// The entries of readers that nobody else is interested in: while one runs alone, and reads no plants, the others
    /// that it calls need not be stopped.
    fn idle_readers(&self) -> Vec<Gpa> {
        let is_reader =
            |purpose: &Purpose| matches!(purpose, Purpose::Milestone(Milestone::Reader(_)));
        let table = self.table.load();
        let readers = self
            .milestones
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

    /// The reader, whose entry the vCPU has just gone past, runs to its return.
    pub(super) fn read_alone<V: Vcpu>(
        &self,
        vcpu: &mut V,
        paused: &dyn Paused,
        reading: &Reading,
        run: &mut impl FnMut(&mut V, To<'_>) -> Result<Ran, GuestError>,
    ) -> Result<(), GuestError> {
        let shown = self
            .planter
            .show_alone(paused, &reading.plants, &[reading.stop])?;
        let ran = run(vcpu, To::Return(reading.returns_to));
        shown.end()?;
        if ran? == Ran::Nowhere && !self.readers_lost.swap(true, Ordering::Relaxed) {
            let function = reading.reader.function();
            self.note(
                None,
                format!(
                    "the kernel's {function} has not returned in time, and may have read plants"
                ),
            );
        }
        Ok(())
    }
}
