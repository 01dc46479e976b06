//! The verdict on a plant: whether a jump or an `int3` may replace the plant.
//!
//! A jump displaces no more than one instruction, so the questions are few: does the instruction have room, does the instruction
//! do the same in the detour, and does the kernel patch or compare the instruction?

use std::sync::Arc;

use address::Gpa;
use detour::{Jumped, Keeps, KernelSpace, Tables, Use};
use introspect::PatchKind;
use introspect::insn::{Decoded, is_plain};
use introspect::optimise::{JUMP_BYTES, MAX_REGION_BYTES, Unfit, WhyNot};
use text::{Paused, Spot};

use crate::engine::optimise::early::Early;
use crate::engine::optimise::int3::{CR4_FRED, Int3Handler, NoInt3};
use crate::engine::plants::Plants;
use crate::engine::running::Running;
use crate::engine::running::located::Located;
use crate::plant::{Plant, own_instruction};

/// The reason why no jump replaces a plant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotOptimised {
    /// A guest write has made the plant withdraw.
    #[error("the guest has just rewritten the instruction")]
    Withdrawn,
    /// Each check of the site is a pause.
    #[error("the guest has rewritten the instruction ten thousand times")]
    RewrittenTooOften,
    /// The bytes do not decode.
    #[error("no instruction is there")]
    NoInstruction,
    /// The jump would reach beyond the instruction.
    #[error("`{0}` has fewer than the 5 bytes of a jump")]
    TooShort(String),
    /// The instruction is not known to do the same elsewhere.
    #[error("`{0}`, in a module, is not known to do the same in a detour")]
    Bound(String),
    /// The kernel patches the instruction at run time.
    #[error("the kernel itself patches the instruction ({0:?})")]
    Patched(PatchKind),
    /// The kernel rewrites the instruction before `rest_init`.
    #[error("the kernel has not patched itself yet, and rewrites this instruction")]
    PatchedLater,
    /// The survey of the kernel's code excludes the instruction.
    #[error(transparent)]
    Unfit(#[from] WhyNot),
    /// The jump would lie over a plant.
    #[error("another probe is where the jump would be")]
    Neighbour,
    /// The instruction may raise a fault, and a handler wants to see faults.
    #[error("`{0}` may fault, and the handler is told of faults")]
    MayFault(String),
    /// Part of the jump would be on the next page.
    #[error("it lies across the end of a page")]
    AcrossPages,
    /// Neither a jump nor an `int3` is possible.
    #[error("{jump}; {int3}")]
    Neither {
        /// The reason against a jump.
        jump: Box<Self>,
        /// The reason against an `int3`.
        int3: NoInt3,
    },
}

impl NotOptimised {
    /// Whether an `int3` may fit where a jump does not.
    const fn is_for_want_of_room(&self) -> bool {
        matches!(
            self,
            Self::TooShort(_) | Self::Unfit(_) | Self::Neighbour | Self::AcrossPages
        )
    }
}

/// Decides whether a jump or an `int3` may replace a plant.
#[derive(Debug)]
pub(crate) struct Verdicts {
    pub(crate) running: Arc<Running>,
    pub(crate) plants: Arc<Plants>,
    pub(crate) int3: Arc<Int3Handler>,
    pub(crate) early: Arc<Early>,
}

impl Verdicts {
    /// The instructions that a jump or an `int3` can displace at `plant`, and the address of the jump or `int3`.
    pub(crate) fn verdict(
        &self,
        paused: &dyn Paused,
        plant: &Plant,
        uses: &[Use],
        kernel: &KernelSpace,
    ) -> Result<(Jumped, Gpa), NotOptimised> {
        let (jumped, gpa) = match self.jump_for(plant) {
            Err(jump) if jump.is_for_want_of_room() => {
                let planted = own_instruction(&self.running.planter, plant.spot, plant.at);
                let planted = planted.ok_or(NotOptimised::NoInstruction)?;
                if let Some(kind) = self.running.patched_at_run_time(plant, &planted) {
                    return Err(NotOptimised::Patched(kind));
                }
                let jumped = self.by_int3(paused, plant, planted, kernel);
                let jumped = jumped.map_err(|int3| {
                    let jump = Box::new(jump);
                    NotOptimised::Neither { jump, int3 }
                })?;
                (jumped, plant.spot.gpa)
            }
            found => found?,
        };
        // A handler wants to see the faults of the instruction.
        if uses.iter().any(|usage| usage.keeps == Keeps::Exits)
            && let Some(decoded) = jumped.instructions().find(|decoded| !is_plain(decoded))
        {
            return Err(NotOptimised::MayFault(decoded.text()));
        }
        Ok((jumped, gpa))
    }

    fn jump_for(&self, plant: &Plant) -> Result<(Jumped, Gpa), NotOptimised> {
        if self.running.planter.is_withdrawn(plant.spot.gpa) {
            return Err(NotOptimised::Withdrawn);
        }
        let located = self
            .running
            .located
            .get()
            .ok_or(NotOptimised::NoInstruction)?;
        let planted = own_instruction(&self.running.planter, plant.spot, plant.at);
        let planted = planted.ok_or(NotOptimised::NoInstruction)?;
        // For the kernel's own text, the survey decides below.
        if self.running.modules.holding(plant.at).is_some() && !is_plain(&planted) {
            return Err(NotOptimised::Bound(planted.text()));
        }
        if self.early.is_patched_later(plant.at, planted.len() as u64) {
            return Err(NotOptimised::PatchedLater);
        }
        if let Some((jumped, gpa)) = self.over_call(plant, &planted) {
            self.surveyed(&jumped, located, &[])?;
            return self.alone(plant, gpa).map(|()| (jumped, gpa));
        }
        if let Some(kind) = self.running.patched_at_run_time(plant, &planted) {
            return Err(NotOptimised::Patched(kind));
        }
        let jumped =
            Jumped::new(planted, None).ok_or_else(|| NotOptimised::TooShort(planted.text()))?;
        if plant.spot.room() < planted.len() {
            return Err(NotOptimised::AcrossPages);
        }
        self.surveyed(&jumped, located, &self.own_code(plant))?;
        self.alone(plant, plant.spot.gpa)?;
        Ok((jumped, plant.spot.gpa))
    }

    /// The original bytes from the plant on, at the most to the end of the page.
    fn own_code(&self, plant: &Plant) -> Vec<u8> {
        let mut code = vec![0; plant.spot.room().min(MAX_REGION_BYTES)];
        match self.running.planter.read_own(plant.spot.gpa, &mut code) {
            Ok(()) => code,
            Err(_) => Vec::new(),
        }
    }

    /// Whether the survey of the kernel allows the jump. Modules have no survey; a single plain instruction needs none. `code` lies
    /// at the jump, if the jump displaces one instruction.
    fn surveyed(&self, jumped: &Jumped, located: Located, code: &[u8]) -> Result<(), WhyNot> {
        if self.running.modules.holding(jumped.at()).is_some() {
            return Ok(());
        }
        let (survey, sites) = (self.running.kernel.survey(), self.running.kernel.sites());
        let at = located.linked(jumped.at());
        match jumped.then() {
            Some(then) => survey.verdict_on_call(sites, at, then.bytes()),
            None => {
                survey.verdict(sites, at, code)?;
                // `verdict` accepts a call that pushes the original return address; a detour's call pushes another. Only a retpoline does
                // not care.
                survey.verdict_on_byte(sites, at, code)
            }
        }
    }

    /// Whether no other plant is in the range of the jump.
    fn alone(&self, plant: &Plant, jump: Gpa) -> Result<(), NotOptimised> {
        let planted = self.running.planter.pages().planted(jump, JUMP_BYTES);
        if planted.iter().any(|gpa| *gpa != plant.spot.gpa) {
            return Err(NotOptimised::Neighbour);
        }
        Ok(())
    }

    /// A jump for a plant behind an ftrace call that is switched off: the jump displaces the call's nop, and the detour executes
    /// the planted instruction too. The plant stays, for a task that stands before the plant now.
    fn over_call(&self, plant: &Plant, planted: &Decoded) -> Option<(Jumped, Gpa)> {
        if !self.plants.shows_own_to_ftrace() || plant.spot.gpa.page_offset() < JUMP_BYTES as u64 {
            return None;
        }
        // One probe's address is the call, and the plant is behind the call. Other probes may be on the planted instruction.
        let mut about = plant.probes.iter().map(|(_, ip)| ip);
        let ip = about.find(|ip| ip.wrapping_add(JUMP_BYTES as u64) == plant.at)?;
        let gpa = plant.spot.gpa.wrapping_sub(JUMP_BYTES as u64);
        let call = own_instruction(&self.running.planter, Spot::contiguous(gpa), *ip)?;
        let is_off = call.len() == JUMP_BYTES && is_plain(&call);
        let jumped = Jumped::new(call, Some(*planted)).filter(|_| is_off)?;
        Some((jumped, gpa))
    }

    /// The instruction at `plant`, displaced by an `int3`, if an `int3` is possible there.
    pub(crate) fn by_int3(
        &self,
        paused: &dyn Paused,
        plant: &Plant,
        planted: Decoded,
        kernel: &KernelSpace,
    ) -> Result<Jumped, NoInt3> {
        if !self.running.has_int3() {
            return Err(NoInt3::Host);
        }
        if kernel.paging.cr4 & CR4_FRED != 0 {
            return Err(NoInt3::Fred);
        }
        let Some(handler) = self.int3.known_handler() else {
            return Err(NoInt3::Handler);
        };
        if kernel.tables == Tables::Early && !self.early.does_early_int3_reach_switch() {
            return Err(NoInt3::HandlerPatchedLater);
        }
        if self.int3.are_pushes_probed(handler) {
            return Err(NoInt3::HandlerProbed);
        }
        if self.int3.is_before_pushes_probed(handler) {
            return Err(NoInt3::HandlerEntryProbed);
        }
        let without = match kernel.tables {
            Tables::Early => self.int3.early_vcpu_without_handler(),
            Tables::Settled => self.int3.vcpu_without_handler(paused),
        };
        if let Some(vcpu) = without {
            return Err(NoInt3::Vcpu(vcpu));
        }
        if self.running.modules.holding(plant.at).is_some() {
            let is_free = is_plain(&planted);
            return if is_free {
                Ok(Jumped::by_int3(planted))
            } else {
                Err(NoInt3::Bound(planted.text()))
            };
        }
        if let Some(located) = self.running.located.get() {
            let (survey, sites) = (self.running.kernel.survey(), self.running.kernel.sites());
            match survey.verdict_on_byte(sites, located.linked(plant.at), planted.bytes()) {
                Err(WhyNot::Unfit(Unfit::Thunk))
                    if self.early.is_early_return_thunk(plant.at, planted.bytes()) => {}
                Err(WhyNot::Fixed { .. })
                    if self
                        .early
                        .is_early_sti_before_return(plant, planted.bytes()) => {}
                verdict => verdict?,
            }
        }
        Ok(Jumped::by_int3(planted))
    }
}
