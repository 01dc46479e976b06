//! Detours while the kernel boots: from the moment when its page tables and its interrupt table support them.
//!
//! ```text
//!   start_kernel … jump_label_init ─────────────────────────▶ rest_init ───────────▶
//!   every hit      a counted hit brings a jump or an int3      all plants are looked at
//!   exits          a patch list names the instruction: exits   region grows beside the image
//! ```
//!
//! Before `rest_init` a kernel calls the same functions hundreds of thousands of times: the kernel sorts its tables, and patches
//! itself. Two obstacles could delay detours until `rest_init`, and both are avoided:
//!
//! * `cleanup_highmap` clears the entries of the page directory around the image. The early region lies in other entries, which
//!   no kernel uses or clears ([`detour::Detour::has_early_place`]).
//! * The kernel rewrites instructions. The kernel's tables list them: a listed instruction waits.
//!
//! Sites are checked at their first hit, one exit each: a boot calls a tenth of the functions, and checking all of them takes
//! longer than their exits. Only counts have early detours; other programs start at `rest_init`.
//!
//! No task but the first runs before `rest_init`, and no second CPU. When the vCPU stands at a kernel event probe there, no task
//! is therefore in a detour or between an `int3` and the switch.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use address::{Gpa, Gva};
use arc_swap::ArcSwapOption;
use detour::{Detour, KernelSpace, Tables};
use introspect::PagingState;
use text::{GuestError, Spot, Vcpu};

use crate::engine::optimise::int3::Int3Handler;
use crate::engine::plants::Plants;
use crate::engine::running::Running;
use crate::engine::running::located::Located;
use crate::plant::{Plant, own_instruction};
use crate::registry::KernelEvent;

/// The kernel's future page tables. While starting, the kernel runs on other tables, whose memory is freed later; both share the
/// entries at the top of the address space.
const KERNEL_TABLES: &str = "init_top_pgt";
/// The entry of exceptions in a kernel that can use FRED. The kernel decides on FRED behind `jump_label_init`.
const FRED_ENTRY: &str = "asm_fred_entrypoint_kernel";
/// `ret`.
const RET: u8 = 0xc3;
/// `jmp rel32` and `jmp rel8`.
const JMP_NEAR: u8 = 0xe9;
const JMP_SHORT: u8 = 0xeb;
/// `sti`, and its length with the longest supported instruction behind.
const STI: u8 = 0xfb;
const MAX_STI_BYTES: usize = 6;

/// The state of early detours, before the kernel has patched itself.
#[derive(Debug)]
pub(crate) struct Early {
    pub(crate) running: Arc<Running>,
    pub(crate) plants: Arc<Plants>,
    pub(crate) int3: Arc<Int3Handler>,

    /// The kernel's page tables and image, from `jump_label_init` to `rest_init`.
    pub(crate) space: ArcSwapOption<KernelSpace>,
    /// Whether the kernel continues to take #BP through its interrupt table.
    pub(crate) keeps_gate: AtomicBool,
}

impl Early {
    pub(crate) fn space(&self) -> Option<KernelSpace> {
        self.space.load().as_deref().cloned()
    }

    pub(crate) fn is_on(&self) -> bool {
        self.space.load().is_some()
    }

    fn keeps_gate(&self) -> bool {
        self.keeps_gate.load(Ordering::Acquire)
    }

    /// Handles the vCPU at `jump_label_init`: from now on, a counted hit may bring a detour.
    pub(crate) fn begin_early_detours(&self, vcpu: &mut dyn Vcpu) -> Result<(), GuestError> {
        let running = vcpu.system_state()?.paging;
        // Early `int3`s have to go before a second CPU starts, which would execute them without an interrupt table.
        let ends =
            self.plants.is_planted(KernelEvent::BootPatched) && !self.running.boot_patched.get();
        let Some(located) = self.running.located.get().filter(|_| ends) else {
            return Ok(());
        };
        let Some(paging) = self.coming_tables(&running, located) else {
            return Ok(());
        };
        if Detour::has_early_place(self.running.memory.as_ref(), &running, &paging) {
            let space = self
                .running
                .kernel_space_with(paging, located, Tables::Early);
            let early = &self;
            early.space.store(Some(Arc::new(space)));
            let has_fred = self
                .running
                .kernel
                .symbols()
                .address_of(FRED_ENTRY)
                .is_some();
            early.keeps_gate.store(!has_fred, Ordering::Release);
        }
        Ok(())
    }

    /// The kernel's own page tables, with the paging mode of `running`.
    fn coming_tables(&self, running: &PagingState, located: Located) -> Option<PagingState> {
        let tables = self.running.kernel.symbols().address_of(KERNEL_TABLES)?;
        let cr3 = self.running.gpa_of(tables, located)?.0;
        Some(PagingState { cr3, ..*running })
    }

    /// Whether the plant may have an early detour: all its probes count each hit. A filter may read through `gs`, whose
    /// base is 0 for a while in `load_percpu_segment`.
    pub(crate) fn may_be_early(&self, plant: &Plant) -> bool {
        let mut probes = plant.probes.iter();
        !plant.returns && self.is_on() && probes.all(|(probe, _)| probe.only_counts())
    }

    /// Whether the kernel will rewrite one of these bytes before `rest_init`.
    pub(crate) fn is_patched_later(&self, at: Gva, len: u64) -> bool {
        let overlaps = |located: Located| {
            let site = self
                .running
                .kernel
                .sites()
                .overlapping(located.linked(at), len);
            site.is_some()
        };
        self.is_on() && self.running.located.get().is_none_or(overlaps)
    }

    /// Whether an `int3` may replace a plant on a return thunk with this code: only early. Before the kernel has chosen its
    /// mitigations against speculation, all returns go through the thunk, and the thunk's address does not matter yet. No return
    /// is executed between an `int3` and the switch.
    pub(crate) fn is_early_return_thunk(&self, at: Gva, code: &[u8]) -> bool {
        self.is_on() && code == [RET] && !self.is_patched_later(at, 1)
    }

    /// Whether a detour may execute the `sti` at the beginning of `code` and jump back to the rest. `sti` holds interrupts back
    /// for one more instruction, which an instruction behind `sti` that waits for an interrupt may count on. A return does not wait,
    /// nor does the `jmp` of `native_irq_enable` to the return thunk. Before `rest_init`, no kernel waits behind another `jmp`.
    pub(crate) fn is_early_sti_before_return(&self, plant: &Plant, code: &[u8]) -> bool {
        if !self.is_on() || code != [STI] || plant.spot.room() < MAX_STI_BYTES {
            return false;
        }
        let spot = Spot::contiguous(plant.spot.gpa.wrapping_add(1));
        let next = own_instruction(&self.running.planter, spot, plant.at.wrapping_add(1));
        next.is_some_and(|next| matches!(next.bytes(), [RET] | [JMP_NEAR, ..] | [JMP_SHORT, ..]))
    }

    /// Whether an early `int3` reaches the switch: the kernel's handler, with its present bytes, reaches the pushes. The kernel
    /// patches the code before the pushes, a few bytes a write.
    pub(crate) fn does_early_int3_reach_switch(&self) -> bool {
        self.keeps_gate()
            && self.int3.int3_prefix_is_watched()
            && self.int3.handler_leads_to_pushes()
    }

    /// Whether the guest, by writing `len` bytes at `gpa`, patches its handler of `int3` while `int3`s may replace plants. The
    /// `int3`s are removed before the write. A site's next hit restores its `int3`, if the handler is whole by then.
    pub(crate) fn patches_int3_handler(&self, gpa: Gpa, len: usize) -> bool {
        self.is_on()
            && self.int3.int3_prefix().is_some_and(|prefix| {
                gpa.0 < prefix.end.0 && prefix.start.0 < gpa.0.saturating_add(len as u64)
            })
    }
}
