//! Panics of the guest's kernel: the message, the task, the registers, and the return addresses on the stack.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use address::Gva;
use events::{Crash, Frame, Hex};
use introspect::insn::{MAX_CALL_BYTES, ends_with_call};
use introspect::read_virt;
use text::{GuestError, Vcpu};

use crate::engine::reporter::{Reporter, registers};
use crate::engine::running::Running;
use crate::engine::stacks::Stacks;
use crate::engine::tasks::Tasks;
use crate::hit_state::HitState;

/// The maximum length of a panic message.
const MAX_MESSAGE_BYTES: usize = 256;
/// The alignment of the start and end of the kernel's stacks.
const STACK_BYTES: u64 = 16 << 10;
/// The maximum number of reported frames.
const MAX_FRAMES: usize = 32;

/// A panic of the guest's kernel.
#[derive(Clone, Debug)]
pub(crate) struct Panicked {
    /// The format string of the panic's message.
    pub(crate) message: String,
    pub(crate) crash: Crash,
    /// The time of the panic; `None` if the guest has started another kernel since.
    pub(crate) at: Option<Instant>,
}

/// Records the panic of the kernel.
#[derive(Debug)]
pub(crate) struct Crashes {
    pub(crate) reporter: Arc<Reporter>,
    pub(crate) running: Arc<Running>,
    pub(crate) tasks: Arc<Tasks>,
    pub(crate) stacks: Arc<Stacks>,
    pub(crate) panicked: Mutex<Option<Panicked>>,
}

impl Crashes {
    /// Records a panic: the vCPU is about to run `panic`.
    pub(crate) fn record_panic(&self, vcpu: &mut dyn Vcpu) -> Result<(), GuestError> {
        let regs = vcpu.regs()?;
        let state = HitState::from(vcpu.system_state()?);
        let task = self.tasks.named(&state, Gva(regs.rip));
        let message = self.string(vcpu, Gva(regs.rdi))?;
        self.reporter
            .note(None, format!("the kernel panics: {message}"));
        let crash = Crash {
            vcpu: vcpu.index(),
            task: task.map(|task| task.comm),
            regs: registers(&regs, Hex(regs.rip)),
            frames: self.frames(vcpu, &regs)?,
        };
        let mut panicked = self.panicked.lock().unwrap_or_else(PoisonError::into_inner);
        // The first panic counts, unless the guest has started another kernel since.
        if panicked.as_ref().is_none_or(|first| first.at.is_none()) {
            *panicked = Some(Panicked {
                message,
                crash,
                at: Some(Instant::now()),
            });
        }
        Ok(())
    }

    fn string(&self, vcpu: &mut dyn Vcpu, at: Gva) -> Result<String, GuestError> {
        let paging = vcpu.system_state()?.paging;
        let mut text = Vec::new();
        for i in 0..MAX_MESSAGE_BYTES as u64 {
            let mut byte = [0];
            let read = read_virt(
                &self.running.planter,
                &paging,
                at.wrapping_add(i),
                &mut byte,
            );
            if read.is_err() || byte == [0] {
                break;
            }
            text.push(byte[0]);
        }
        Ok(String::from_utf8_lossy(&text).trim_end().to_owned())
    }

    /// The callers of `panic`; for a kernel without rules for unwinding, the return addresses on the stack.
    fn frames(&self, vcpu: &mut dyn Vcpu, regs: &vmm::kvm_regs) -> Result<Vec<Frame>, GuestError> {
        let paging = vcpu.system_state()?.paging;
        let stack = self.stacks.of(&paging, regs, None);
        if let Some(why) = &stack.incomplete {
            self.reporter
                .note(None, format!("the stack of the panic ends early: {why}"));
        }
        // The first frame is `panic` itself.
        let callers = stack.frames.into_iter().skip(1).take(MAX_FRAMES);
        let frames: Vec<Frame> = callers.map(Frame::from).collect();
        if frames.is_empty() {
            return self.return_addresses(vcpu, regs.rsp);
        }
        Ok(frames)
    }

    /// The return addresses on the stack from `rsp` on: every word with an address behind a call in the kernel's text. Some
    /// may be left over from finished calls, like the lines with a question mark in the kernel's own traces.
    fn return_addresses(&self, vcpu: &mut dyn Vcpu, rsp: u64) -> Result<Vec<Frame>, GuestError> {
        let paging = vcpu.system_state()?.paging;
        let end = (rsp | (STACK_BYTES - 1)).wrapping_add(1);
        let words = end.wrapping_sub(rsp) / 8;
        let mut frames = Vec::new();
        for n in 0..words {
            let mut word = [0; 8];
            let at = Gva(rsp).wrapping_add(8 * n);
            if read_virt(&self.running.planter, &paging, at, &mut word).is_err() {
                break;
            }
            let ip = Gva(u64::from_le_bytes(word));
            if let Some(symbol) = self.behind_call(ip) {
                frames.push(Frame {
                    ip: ip.into(),
                    symbol,
                    is_return_address: true,
                    build_id: None,
                    source: None,
                });
                if frames.len() == MAX_FRAMES {
                    break;
                }
            }
        }
        Ok(frames)
    }

    /// The symbol of `ip` with offset and size, if a call in the kernel's image returns to `ip`.
    fn behind_call(&self, ip: Gva) -> Option<String> {
        let located = self.running.located.get()?;
        let linked = located.linked(ip);
        if !self.running.kernel.holds_code(linked) {
            return None;
        }
        let start = Gva(linked.0.checked_sub(MAX_CALL_BYTES as u64)?);
        let before = self.running.kernel.bytes_at(start, MAX_CALL_BYTES)?;
        // The byte before `ip` selects the symbol: if a function ends with a call that does not return, `ip` is in the next
        // function.
        let within = self.running.kernel.symbols().resolve(Gva(linked.0 - 1))?;
        let (offset, symbol) = (within.offset + 1, &within.symbol);
        ends_with_call(before).then(|| format!("{}+{offset:#x}/{:#x}", symbol.name, symbol.size))
    }
}

impl Crashes {
    pub(crate) fn panicked(&self) -> Option<Panicked> {
        self.panicked
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}
