//! Copies of the kernel's text, made by hyprobe instead of the kernel, from the original bytes.
//!
//! ftrace compares text before patching by `copy_from_kernel_nofault`; oops messages and `/proc/kcore` read text by the same
//! function. The function copies and returns 0, or returns an error. If no fault is possible, hyprobe makes the copy at the
//! function's entry, while the other vCPUs run. The vCPU resumes at the return address, so a return probe on the function
//! sees the return. Otherwise the function itself runs, alone.

use address::{Gpa, Gva, PAGE_BYTES};
use introspect::{PagingState, walk};
use text::GuestError;

use crate::engine::hits::readers::{MAX_READ_BYTES, Readers};
use crate::handler::HitContext;
use crate::plant::Plant;
use crate::registry::{Purpose, Reader};

/// The functions of a copy: a probe in either function sees each execution, so none may be skipped.
const FUNCTIONS: [&str; 2] = [Reader::Copy.function(), "copy_from_kernel_nofault_allowed"];

/// The kind of an access: a write needs more of a page than a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Read,
    Write,
}

impl Readers {
    /// Makes the copy for the call whose entry the vCPU has reached, from the original bytes. Returns whether the copy is
    /// complete; otherwise the function must run, and may find a partial copy.
    pub(crate) fn make_copy(
        &self,
        hit: &mut HitContext<'_>,
        plant: &Plant,
    ) -> Result<bool, GuestError> {
        if self.must_execute_copy(plant) {
            return Ok(false);
        }
        let state = hit.state()?.registers;
        let (to, from, len) = (Gva(hit.regs.rdi), Gva(hit.regs.rsi), hit.regs.rdx);
        if state.privilege != 0 || len == 0 || len > MAX_READ_BYTES {
            return Ok(false);
        }
        let source = self.kernel_pages(&state.paging, from, len, Access::Read);
        let target = self.kernel_pages(&state.paging, to, len, Access::Write);
        let (Some(source), Some(target)) = (source, target) else {
            return Ok(false);
        };
        let pages = self.running.planter.pages();
        let watched = self.watches.table.load();
        let is_unsuitable =
            |page: &Gpa| source.contains(page) || pages.keeps(*page) || watched.protects(*page);
        if target.iter().any(is_unsuitable) || source.iter().any(|page| watched.hides(*page)) {
            return Ok(false);
        }
        Ok(self.copy_pages((from, &source), (to, &target), len))
    }

    /// Whether a probe or handler would miss an execution, if the function did not run.
    fn must_execute_copy(&self, entry: &Plant) -> bool {
        let wants_post =
            |purpose: &Purpose| matches!(purpose, Purpose::Handle(handler) if handler.0.has_post());
        let mut probes = entry.probes.iter();
        if probes.any(|(probe, _)| wants_post(&probe.purpose)) {
            return true;
        }
        let Some(located) = self.running.located.get() else {
            return true;
        };
        let table = self.plants.table.load();
        FUNCTIONS.iter().any(|function| {
            let Some(symbol) = self.running.kernel.symbols().lookup(function) else {
                return false;
            };
            let (start, end) = (symbol.address, symbol.address.wrapping_add(symbol.size));
            let is_within = |at: Gva| (start..end).contains(&located.linked(at)) && at != entry.at;
            if table.in_registers().any(|plant| is_within(plant.at)) {
                return true;
            }
            let Some(gpa) = self.running.gpa_of(start, located) else {
                return true;
            };
            let entry = entry.spot.gpa;
            (0..symbol.size).any(|offset| {
                let gpa = gpa.wrapping_add(offset);
                gpa != entry && table.at_gpa(gpa).is_some()
            })
        })
    }

    /// The pages of `len` bytes from `at` on, in the kernel's half. `None` if the access could fault, or the processor would
    /// set an accessed or dirty bit.
    fn kernel_pages(
        &self,
        paging: &PagingState,
        at: Gva,
        len: u64,
        access: Access,
    ) -> Option<Vec<Gpa>> {
        let last = at.checked_add(len.checked_sub(1)?)?;
        if at.0 >> 63 == 0 {
            return None;
        }
        let mut pages = Vec::new();
        let mut page = at.page();
        loop {
            let found = walk(&self.running.planter, paging, page).ok()?;
            let is_writable = found.writable && found.dirty;
            if found.user || !found.accessed || (access == Access::Write && !is_writable) {
                return None;
            }
            pages.push(found.gpa);
            if page == last.page() {
                return Some(pages);
            }
            page = page.checked_add(PAGE_BYTES)?;
        }
    }

    /// Copies word by word, as the kernel does: a word written by another vCPU is copied whole. Returns whether all bytes
    /// are memory.
    fn copy_pages(&self, from: (Gva, &[Gpa]), to: (Gva, &[Gpa]), len: u64) -> bool {
        let place = |(start, pages): (Gva, &[Gpa]), done: u64| {
            let offset = start.page_offset() + done;
            let page = pages.get(usize::try_from(offset / PAGE_BYTES).ok()?)?;
            Some(page.wrapping_add(offset % PAGE_BYTES))
        };
        let mut done = 0;
        while done < len {
            let (Some(source), Some(target)) = (place(from, done), place(to, done)) else {
                return false;
            };
            let room = PAGE_BYTES - target.page_offset();
            let here = (8 - source.0 % 8).min(room).min(len - done);
            let mut bytes = [0; 8];
            let bytes = &mut bytes[..usize::try_from(here).unwrap_or(8)];
            if self.running.planter.read_own(source, bytes).is_err()
                || self.running.memory.write(target, bytes).is_err()
            {
                return false;
            }
            done += here;
        }
        true
    }
}
