//! Where the kernel's half of the address space is looked up without asking the vCPU for its page tables.

use address::Gva;
use text::testing::FakeVcpu;

use super::{LARGE_PAGE, LOWER, LOWER_DIRECTORY, PLAIN, ROOT, Rig, TABLE, UPPER, gpa, vcpu};
use crate::engine::hits::outcome::HitOutcome;
use crate::resolve::synthetic::SyntheticKernel;

/// Where the kernel sees the guest's memory, beside where it is.
const KERNEL: u64 = 0xffff_8000_0000_0000;
const SLOT: u64 = 256;
/// The page tables of a process, which has another page where the kernel has its memory.
const PROCESS: u64 = 0x7000;
const OWN: u64 = 0x8000;
const OWN_DIRECTORY: u64 = 0x9000;
const OWN_TABLE: u64 = 0xa000;
/// Tables in which nothing is mapped.
const NOTHING: u64 = 0xb000;
/// Present, writable, accessed, dirty.
const PAGE: u64 = 0x63;
const USER: u64 = 4;
/// The guest-physical addresses of the kernel's stack, and of the memory that the process maps at the same virtual address.
const STACK: u64 = super::STACK;
const ELSEWHERE: u64 = super::STACK + 0x8000;
const PUSHED: u64 = 0x1122_3344_5566_7788;

struct Guest {
    rig: Rig,
    rest_init: Gva,
    probed: Gva,
}

impl Guest {
    fn new() -> Self {
        Self::with(|_, _| ())
    }

    fn with(change: impl Fn(&mut SyntheticKernel, Gva)) -> Self {
        let mut kernel = SyntheticKernel::new();
        let rest_init = kernel.function("rest_init", &PLAIN);
        // Begins with `push rbp`.
        let probed = kernel.function("probed", &PLAIN);
        change(&mut kernel, probed);
        let rig = Rig::new(&kernel, &["kprobe:probed"]);
        let guest = Self {
            rig,
            rest_init,
            probed,
        };
        guest.map(ROOT + 8 * SLOT, LOWER | TABLE);
        guest.map(PROCESS, LOWER | TABLE);
        guest.map(PROCESS + 8 * 511, UPPER | TABLE);
        guest.map(PROCESS + 8 * SLOT, OWN | TABLE);
        guest.map(OWN, OWN_DIRECTORY | TABLE);
        guest.map(OWN_DIRECTORY, OWN_TABLE | TABLE);
        for page in [STACK - 0x1000, STACK] {
            guest.map(OWN_TABLE + 8 * (page >> 12), (page + 0x8000) | PAGE);
        }
        guest
    }

    fn map(&self, entry: u64, value: u64) {
        self.rig.memory.put(entry, &value.to_le_bytes());
    }

    /// The kernel's own tables are known from here on.
    fn booted(&self) {
        let mut vcpu = vcpu(self.rest_init);
        let engine = &self.rig.engine;
        let outcome = engine
            .hits
            .on_hit(&mut vcpu, self.rest_init)
            .expect("handled");
        assert_eq!(outcome, HitOutcome::NeedsPause);
        engine
            .paused_hits
            .on_paused_hit(&mut vcpu, &self.rig.paused, self.rest_init, |_, _| {
                panic!("nothing to step")
            })
            .expect("handled");
    }

    /// Executes `push rbp`, with the page tables at `cr3` and the stack pointer `rsp`.
    fn push(&self, cr3: u64, rsp: u64) -> FakeVcpu {
        self.push_at(self.probed, cr3, rsp)
    }

    fn push_at(&self, rip: Gva, cr3: u64, rsp: u64) -> FakeVcpu {
        for at in [STACK - 8, ELSEWHERE - 8] {
            self.map(at, 0);
        }
        let mut vcpu = vcpu(rip);
        (vcpu.regs.rsp, vcpu.regs.rbp) = (rsp, PUSHED);
        vcpu.state.paging.cr3 = cr3;
        let outcome = self.rig.engine.hits.on_hit(&mut vcpu, rip);
        assert_eq!(outcome.expect("handled"), HitOutcome::Resume);
        vcpu
    }

    /// The values pushed onto the kernel's stack, and onto the process's page.
    fn pushed(&self) -> (u64, u64) {
        (self.rig.word(STACK - 8), self.rig.word(ELSEWHERE - 8))
    }
}

#[test]
fn known_kernel_tables_translate_without_the_vcpu() {
    let guest = Guest::new();
    guest.booted();
    let vcpu = guest.push(NOTHING, KERNEL + STACK);
    assert_eq!(guest.pushed(), (PUSHED, 0));
    assert!(vcpu.injected.is_empty());
    assert_eq!(vcpu.regs.rsp, KERNEL + STACK - 8);
}

#[test]
fn vcpu_translates_before_the_kernel_has_booted() {
    let guest = Guest::new();
    guest.push(PROCESS, KERNEL + STACK);
    assert_eq!(guest.pushed(), (0, PUSHED));
}

#[test]
fn vcpu_translates_addresses_of_programs() {
    let guest = Guest::new();
    guest.booted();
    let vcpu = guest.push(NOTHING, STACK);
    assert_eq!(guest.pushed(), (0, 0));
    assert_eq!(vcpu.injected.len(), 1, "a page fault: it is not mapped");
}

#[test]
fn vcpu_translates_in_code_that_may_run_on_program_tables() {
    let guest = Guest::with(|kernel, probed| {
        kernel.symbol("__entry_text_start", probed);
        kernel.symbol("__entry_text_end", probed.wrapping_add(1));
    });
    guest.booted();
    guest.push(PROCESS, KERNEL + STACK);
    assert_eq!(guest.pushed(), (0, PUSHED));
}

#[test]
fn vcpu_translates_if_the_kernel_runs_by_another_mapping() {
    let guest = Guest::new();
    guest.booted();
    guest.push_at(Gva(gpa(guest.probed)), PROCESS, KERNEL + STACK);
    assert_eq!(guest.pushed(), (0, PUSHED));
}

#[test]
fn vcpu_translates_pages_that_are_not_of_the_kernel_alone() {
    for (entry, value) in [
        (LOWER_DIRECTORY, LARGE_PAGE | USER),
        // Not accessed, not dirty, read-only, not there.
        (LOWER_DIRECTORY, LARGE_PAGE & !0x20),
        (LOWER_DIRECTORY, LARGE_PAGE & !0x40),
        (LOWER_DIRECTORY, LARGE_PAGE & !2),
        (ROOT + 8 * SLOT, 0),
    ] {
        let guest = Guest::new();
        guest.booted();
        guest.map(entry, value);
        for table in [ROOT + 8 * SLOT, LOWER]
            .into_iter()
            .filter(|_| value & USER != 0)
        {
            let above = guest.rig.word(table);
            guest.map(table, above | USER);
        }
        guest.push(PROCESS, KERNEL + STACK);
        assert_eq!(guest.pushed(), (0, PUSHED), "{entry:#x}: {value:#x}");
    }
}

#[test]
fn the_tables_are_walked_anew_each_time() {
    let guest = Guest::new();
    guest.booted();
    guest.push(NOTHING, KERNEL + STACK);
    assert_eq!(guest.pushed(), (PUSHED, 0));
    // The kernel's tables now map the stack to the process's page.
    guest.map(ROOT + 8 * SLOT, OWN | TABLE);
    guest.push(NOTHING, KERNEL + STACK);
    assert_eq!(guest.pushed(), (0, PUSHED));
}
